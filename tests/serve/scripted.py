"""A backend whose every event comes when the test says so, and a server in front of it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import httpx
import msgspec
import trio
from attrs import evolve, frozen

from pipeline.assembly import Settings
from pipeline.errors import Failure
from pipeline.events import Event, Failed, TextDelta, ToolCall, TurnEnd, Usage
from pipeline.loose_json import Json
from pipeline.serve.backends import Models, ServerBackend
from pipeline.serve.observe import logs
from pipeline.serve.running import serving
from pipeline.serve.server import Server
from pipeline.stage import Incoming, Send, Source
from pipeline.tasks import SendingSource
from pipeline.turn import Turn

CHAT = "/v1/chat/completions"
SOON = 5.0
"""Longer than anything here takes; a test that waits so long has failed."""

Step: TypeAlias = Event | trio.Event | Exception
"""What a turn does next: say something, wait for the test, or break."""
Script: TypeAlias = Sequence[Step]

USAGE = Usage(120, 33, 153, 64, 9)
HELLO: Script = (TextDelta("Hello"), TextDelta(", world"), USAGE, TurnEnd())
BROKEN = Failure("the upstream is down", status=502, code="upstream_error")
FAILS: Script = (Failed(BROKEN), TurnEnd("failed"))


def call(letter: str, index: int = 0, name: str = "look", arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call_{letter}", name, arguments, index)


class ScriptedTurn(SendingSource):
    """Says its script, one burst a step, and notes how it was left."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._spoke = False
        self.entered = trio.Event()
        self.over = trio.Event()
        self.left = ""
        """`cancelled` or `ended`, once it is over."""

    async def run(self, send: Send) -> None:
        self.left = "cancelled"
        self.entered.set()
        try:
            for step in self._script:
                await self._take(step, send)
            self.left = "ended"
        finally:
            self.over.set()

    async def _take(self, step: Step, send: Send) -> None:
        match step:
            case trio.Event():
                await step.wait()
            case Exception():
                if self._spoke:  # a mistake may overtake what was said just before it
                    await trio.testing.wait_all_tasks_blocked()
                raise step
            case _:
                self._spoke = True
                await send.send((evolve(step, at=trio.current_time()),))


class ScriptedBackend:
    """Plays the same script for every turn, or the one that a function chooses for it."""

    name = "a script"
    takes_strict_tools = False
    without_effect = frozenset[str]()

    def __init__(
        self, script: Script | Callable[[Turn], Script] = HELLO, models: Sequence[str] = ("gpt-5",)
    ) -> None:
        self._script = script
        self.listed: Sequence[str] | Exception | None = models
        """The listed models; None: the backend never replies."""
        self.unlisted: tuple[str, ...] = ()
        self.tools: list[Json] = []
        """The listed tools of MCP servers."""
        self.why_not = ""
        self.asked: list[Turn] = []
        self.turns: list[ScriptedTurn] = []
        self.tally: Counter[str] = Counter()

    def counters(self) -> Counter[str]:
        return self.tally

    @property
    def source(self) -> Source:
        return self

    real_time = True

    def open(self, turn: Turn) -> AbstractAsyncContextManager[Incoming]:
        chosen = self.chosen(turn)
        self.asked.append(turn)
        return chosen.open(turn)

    def chosen(self, turn: Turn) -> Source:
        """What runs a turn."""
        script = self._script(turn) if callable(self._script) else self._script
        self.turns.append(ScriptedTurn(script))
        return self.turns[-1]

    async def models(self) -> Models:
        if self.listed is None:
            await trio.sleep_forever()
        if isinstance(self.listed, Exception):
            raise self.listed
        return Models(tuple(self.listed or ()), self.unlisted)

    async def mcp_tools(self) -> list[Json]:
        await self.models()  # what holds back the one holds back the other
        return self.tools

    async def check_login(self) -> None:
        return

    async def until_turn(self, number: int = 0) -> ScriptedTurn:
        """A turn, once it runs."""
        with trio.fail_after(SOON):
            while len(self.turns) <= number:  # noqa: ASYNC110  (a list tells nobody that it grew)
                await trio.sleep(0.002)
            await self.turns[number].entered.wait()
        return self.turns[number]


class LeavingBackend(ScriptedBackend):
    """Does something of the test's when a turn is left."""

    def __init__(self, script: Script, leave: Callable[[], Awaitable[None]]) -> None:
        super().__init__(script)
        self._leave = leave

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        try:
            async with super().open(turn) as incoming:
                yield incoming
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()


@frozen
class Served:
    """A server that listens, and a client of it."""

    url: str
    client: httpx.AsyncClient
    server: Server
    log: io.StringIO

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(self, words: str = "Hi", **more: Any) -> httpx.Response:
        headers = more.pop("headers", None)
        return await self.client.post(CHAT, json=body(words, **more), headers=headers)

    def lines(self, event: str = "request") -> list[Json]:
        """What was logged under a name."""
        read = [msgspec.json.decode(line) for line in self.log.getvalue().splitlines()]
        return [line for line in read if line["event"] == event]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that is about to hold."""
        with trio.fail_after(SOON):
            while not condition():  # noqa: ASYNC110  (what is waited for is a counter or a log)
                await trio.sleep(0.002)

    async def until_logged(self, number: int = 1) -> list[Json]:
        await self.until(lambda: len(self.lines()) >= number)
        return self.lines()

    def metric(self, line: str) -> float:
        """The value of a sample, named as it is exposed; 0 where it is not."""
        for sample in self.server.metrics.exposition().decode().splitlines():
            name, _, value = sample.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0


def body(words: str = "Hi", /, **more: Any) -> Json:
    return {"model": "gpt-5", "messages": [{"role": "user", "content": words}], **more}


def tools(*names: str) -> list[Json]:
    return [{"type": "function", "function": {"name": name}} for name in names]


@asynccontextmanager
async def served(backend: ServerBackend | None = None, **flags: Any) -> AsyncGenerator[Served]:
    """A server on a free port of loopback, with its log in JSON."""
    chosen: dict[str, Any] = {"log_format": "json", "shutdown_grace": 0.0, **flags}
    settings = evolve(Settings(port=0, store=":memory:"), **chosen)
    log = io.StringIO()
    logs.configure(settings, log)
    async with (
        serving(settings, backend=ScriptedBackend() if backend is None else backend) as running,
        # Without certificates to load, a client is made in no time.
        httpx.AsyncClient(base_url=running.url, timeout=SOON, verify=False) as client,  # noqa: S501
    ):
        yield Served(running.url, client, running.server, log)
        await client.aclose()  # before the server waits for its connections
