"""An app-server whose model takes its time, at the other end of a wire, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import trio
from attrs import Factory, define, frozen

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import Event, Failed, TextDelta, ToolCall, Usage
from pipeline.loose_json import Json
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.app_server.protocol.capabilities import Capabilities, Learned
from sources.app_server.turn.kept import KeepOptions, KeptThreads
from sources.app_server.turn.place import Bounds, Place
from sources.app_server.turn.record import Recorder
from sources.app_server.turn.source import AppServerSource
from tests.support.app_server_wire import Wire, connected

CAN = Capabilities(
    dynamic_tools=True, inject_items=True, delete_thread=True, archive_thread=True, raw_events=True
)
TOOL = Tool("look")


@frozen
class Step:
    """Something the model writes, after a silence."""

    gap: float
    kind: Literal["call", "text", "reasoning", "nothing"]
    words: str = "{}"


Response = Sequence[Step]


@define
class SlowCodex:
    """Plays one response after the other, each once the calls of the one before were answered.

    As Codex 0.144 and 0.163 do, it asks for one call after the other. Only with `tells` it says
    when a response has ended; what a response cost is said behind its outputs in any case.
    """

    wire: Wire
    nursery: trio.Nursery
    responses: Sequence[Response]
    tells: bool
    threads: int = 0
    interrupted: int = 0
    _numbers: Any = Factory(count)
    _answers: dict[str, trio.Event] = Factory(dict[str, trio.Event])
    _outputs: list[Json] = Factory(list[Json])

    def heard(self, message: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """What is answered to a message of the client's."""
        if "method" not in message:
            self._answers[message["id"]].set()
            return ()
        match message["method"]:
            case "thread/start":
                self.threads += 1
                result: Json = {"thread": {"id": f"thread-{self.threads}"}}
            case "turn/start":
                self.nursery.start_soon(self._play, f"thread-{self.threads}")
                result = {"turn": {"id": "turn-1"}}
            case "turn/interrupt":
                self.interrupted += 1
                result = {}
            case _:
                result = {}
        return [{"id": message["id"], "result": result}]

    def _tell(self, thread: str, method: str, **params: Any) -> None:
        named = {"threadId": thread, "turnId": "turn-1", **params}
        self.wire.say({"method": method, "params": named})

    async def _play(self, thread: str) -> None:
        self._tell(thread, "turn/started", turn={"id": "turn-1"})
        names = count(1)
        total = 0
        for number, response in enumerate(self.responses):
            made: list[str] = []
            send, receive = trio.open_memory_channel[str](100)  # noqa: TID251
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, thread, receive, made)
                with send:
                    await self._write(thread, response, names, send)
                usage = cost(number)
                if self.tells:
                    self._tell(thread, "rawResponse/completed", responseId="r", usage=usage)
            for call_id in made:
                output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
                self._tell(thread, "rawResponseItem/completed", item=output)
            total += usage["totalTokens"]
            tokens = {"last": usage, "total": {"totalTokens": total}}
            self._tell(thread, "thread/tokenUsage/updated", tokenUsage=tokens)
        self._tell(thread, "turn/completed", turn={"id": "turn-1", "status": "completed"})

    async def _write(
        self, thread: str, response: Response, names: Any, calls: trio.MemorySendChannel[str]
    ) -> None:
        for place, step in enumerate(response):
            await trio.sleep(step.gap)
            item = f"item-{place}"
            match step.kind:
                case "call":
                    call_id = f"call_{next(names)}"
                    called = {"type": "function_call", "call_id": call_id, "name": TOOL.name}
                    raw = {**called, "arguments": step.words}
                    self._tell(thread, "rawResponseItem/completed", item=raw)
                    calls.send_nowait(call_id)
                case "text":
                    self._tell(thread, "item/agentMessage/delta", itemId=item, delta=step.words)
                case "reasoning":
                    method = "item/reasoning/summaryTextDelta"
                    self._tell(thread, method, itemId=item, delta="hm", summaryIndex=0)
                case "nothing":
                    pass

    async def _ask(
        self, thread: str, calls: trio.MemoryReceiveChannel[str], made: list[str]
    ) -> None:
        """Have the calls run, one after the other; the turn goes on when all are answered."""
        async for call_id in calls:
            made.append(call_id)
            name = f"ask-{next(self._numbers)}"
            answered = self._answers[name] = trio.Event()
            params = {"threadId": thread, "turnId": "turn-1", "callId": call_id, "tool": TOOL.name}
            self.wire.say({"id": name, "method": "item/tool/call", "params": params})
            await answered.wait()


def cost(number: int) -> dict[str, int]:
    """What a response costs: each something else."""
    return {
        "inputTokens": 1000 + number,
        "outputTokens": 10,
        "totalTokens": 1010 + number,
        "cachedInputTokens": 0,
        "reasoningOutputTokens": 0,
    }


@frozen
class OneBackend:
    """The app-server at the other end of a wire."""

    place: Place
    bounds: Bounds = Bounds()
    kept: KeptThreads = Factory(KeptThreads)

    async def lease(self) -> Place:
        return self.place


@asynccontextmanager
async def slow_codex(
    *responses: Response,
    tells: bool,
    learned: Learned | None = None,
    bounds: Bounds | None = None,
    keep: KeepOptions | None = None,
) -> AsyncGenerator[tuple[SlowCodex, OneBackend]]:
    async with connected() as (wire, client), trio.open_nursery() as nursery:
        codex = SlowCodex(wire, nursery, responses, tells)
        wire.on_send = codex.heard
        place = Place(client, CAN, ".", nursery, learned=learned or Learned())
        yield codex, OneBackend(place, bounds or Bounds(), KeptThreads(keep))
        nursery.cancel_scope.cancel()


@define
class Answer:
    """What a client got for one request."""

    events: Sequence[Event]
    took: float

    @property
    def calls(self) -> list[ToolCall]:
        return [event for event in self.events if isinstance(event, ToolCall)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def usage(self) -> list[int]:
        return [event.total_tokens for event in self.events if isinstance(event, Usage)]

    @property
    def failures(self) -> list[Failed]:
        return [event for event in self.events if isinstance(event, Failed)]


async def ask(
    backend: OneBackend,
    items: Sequence[Json],
    settings: Settings | None = None,
    record: Path | None = None,
    **turn: Any,
) -> Answer:
    """One request through the whole pipeline, as the server runs it."""
    asked = Turn(model="m", items=tuple(items), tools=(TOOL,), request_id="req_1", **turn)
    began = trio.current_time()
    recipe = assembly.recipe(settings or Settings())
    recorder = None if record is None else Recorder(record)
    source = AppServerSource(backend, record=lambda: recorder)
    events = await recipe.run(source, Collect(), asked, fuse=True)
    return Answer(events, trio.current_time() - began)


def followed(items: Sequence[Json], answer: Answer) -> list[Json]:
    """A conversation with what was answered, and the outputs of its calls."""
    said: list[Json] = []
    if answer.text:
        said.append({"type": "message", "role": "assistant", "content": answer.text})
    for call in answer.calls:
        made = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        said.append({"type": "function_call", **made})
    for call in answer.calls:
        output = {"call_id": call.call_id, "output": f"of {call.call_id}"}
        said.append({"type": "function_call_output", **output})
    return [*items, *said]


async def converse(
    backend: OneBackend,
    *,
    running: float = 0.5,
    settings: Settings | None = None,
    record: Path | None = None,
    most: int = 30,
) -> list[Answer]:
    """A client that runs every tool it is asked to, `running` seconds each time, to the end."""
    items: list[Json] = [{"type": "message", "role": "user", "content": "Go"}]
    answers: list[Answer] = []
    for _ in range(most):
        answer = await ask(backend, items, settings, record)
        answers.append(answer)
        if not answer.calls:
            return answers
        items = followed(items, answer)
        await trio.sleep(running)
    raise AssertionError("the client was sent round in circles")
