"""The ways to the same backend that are compared: straight to it, and through the server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import trio
from attrs import Factory, define, evolve, field, frozen

from pipeline.bench.accounting import Account
from pipeline.bench.ear import SENT, TOLD, Ear
from pipeline.bench.wish import Wish
from pipeline.loose_json import Json, as_json, text_of
from sources.app_server.stdio import widen
from sources.app_server.supervisor import NOISE

READ: Final = 65_536
ENDLESS: Final = 1_000_000
MODEL: Final = "gpt-5"
_encode: Final = msgspec.json.Encoder().encode


@frozen
class Heard:
    """What came of a load."""

    chunks: int
    seconds: float
    cpu: float
    """The CPU seconds that the server spent on it; none where there is no server."""
    firsts: list[float]
    """How long each stream's first chunk took."""
    transits: list[float]
    ears: list[Ear] = Factory(list[Ear])
    memory: int = 0
    """The resident bytes of the server at the end, where it was looked at."""

    @property
    def rate(self) -> float:
        return self.chunks / self.seconds

    @property
    def micros(self) -> float:
        """CPU microseconds a chunk."""
        return self.cpu / max(1, self.chunks) * 1e6


class Arm(Protocol):
    """One way to run turns."""

    @property
    def name(self) -> str: ...

    async def load(self, streams: int, wish: Wish) -> Heard:
        """So many streams at once, each to its end."""
        ...

    async def watch(self, streams: int, gap: float, seconds: float) -> Heard:
        """So many streams, heard for so long once all of them are under way."""
        ...


# -- straight to the backend -----------------------------------------------------------------------


@define(eq=False)
class Direct:
    """Speaks to an app-server's own pipes and reads them as fast as they can be read."""

    process: trio.Process
    name: str = "direct"
    _numbers: int = 0

    @classmethod
    @asynccontextmanager
    async def started(
        cls, command: Sequence[str], env: dict[str, str] | None = None
    ) -> AsyncGenerator[Direct]:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(_child, command, env)
            direct = cls(process)
            hello: Json = {
                "clientInfo": {"name": "bench", "title": "bench", "version": "1"},
                # What the server does without, and reads from a pipe of the same size.
                "capabilities": {"experimentalApi": True, "optOutNotificationMethods": [*NOISE]},
            }
            await direct._ask("initialize", hello)
            yield direct
            nursery.cancel_scope.cancel()

    async def load(self, streams: int, wish: Wish) -> Heard:
        return await self._play([wish] * streams)

    async def _play(self, wishes: list[Wish]) -> Heard:
        streams, wishing = len(wishes), iter(wishes)
        ear = Ear(TOLD, stamped=bool(wishes[0].gap))
        started = time.monotonic()
        begun: dict[int, str] = {}
        for _ in range(streams):
            begun[self._post("thread/start", _thread())] = "thread/start"
            await self._flush()
        threads: list[str] = []
        ended = 0
        while ended < streams:
            whole = ear.hear(await self._read())
            for line in whole.splitlines() if begun else ():
                if line.startswith((b'{"id":', b'{"result"')) or b'"id":' in line[:200]:
                    message = as_json(msgspec.json.decode(line))
                    await self._answered(message, begun, threads, wishing)
            ended += whole.count(b'"turn/completed"')
        seconds = time.monotonic() - started
        for thread in threads:
            await self._ask("thread/delete", {"threadId": thread})
        return Heard(ear.chunks, seconds, 0.0, [ear.first - started], ear.transits, [ear])

    async def watch(self, streams: int, gap: float, seconds: float) -> Heard:
        """So many streams that begin one after the other, heard once all are under way."""
        rounds = ceil(seconds / gap) + 2
        wishes = [Wish(rounds, gap, after=number * gap / streams) for number in range(streams)]
        heard = await self._play(wishes)
        return evolve(heard, transits=heard.transits[2 * streams :])

    async def _answered(
        self, message: Json, begun: dict[int, str], threads: list[str], wishes: Iterator[Wish]
    ) -> None:
        method = begun.pop(message.get("id", -1), "")
        if method == "thread/start":
            thread = text_of(as_json(as_json(message.get("result")).get("thread")).get("id"))
            threads.append(thread)
            item = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": str(next(wishes))}],
            }
            begun[self._post("thread/inject_items", {"threadId": thread, "items": [item]})] = thread
        elif method in threads:
            turn: Json = {"threadId": method, "input": [], "model": MODEL}
            begun[self._post("turn/start", turn)] = "turn/start"
        await self._flush()

    # -- JSON-RPC, as little as will do --------------------------------------------------------

    _out: list[bytes] = field(factory=list[bytes])

    def _post(self, method: str, params: Json) -> int:
        self._numbers += 1
        self._out.append(_encode({"id": self._numbers, "method": method, "params": params}))
        return self._numbers

    async def _flush(self) -> None:
        assert self.process.stdin is not None  # noqa: S101
        data = b"".join(line + b"\n" for line in self._out)
        self._out.clear()
        if data:
            await self.process.stdin.send_all(data)

    async def _read(self) -> bytes:
        assert self.process.stdout is not None  # noqa: S101
        data = await self.process.stdout.receive_some(READ)
        if not data:
            raise ConnectionError("the backend ended in the middle of a measurement")
        return bytes(data)

    async def _ask(self, method: str, params: Json) -> None:
        number = self._post(method, params)
        await self._flush()
        ear = Ear(b"\0")
        while True:
            for line in ear.hear(await self._read()).splitlines():
                if as_json(msgspec.json.decode(line)).get("id") == number:
                    return


def _thread() -> Json:
    return {
        "model": MODEL,
        "cwd": "/",
        "approvalPolicy": "never",
        "sandbox": "read-only",
        "experimentalRawEvents": True,
        "environments": [],
    }


async def _child(
    command: Sequence[str],
    env: dict[str, str] | None,
    task_status: trio.TaskStatus[trio.Process],
) -> None:
    process = await trio.lowlevel.open_process(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    assert isinstance(process.stdout, trio.lowlevel.FdStream)  # noqa: S101
    widen(process.stdout)
    task_status.started(process)
    try:
        await trio.sleep_forever()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


# -- through the server ----------------------------------------------------------------------------


@define(eq=False)
class Proxied:
    """A client of Chat Completions that costs as little as a client can."""

    url: str
    account: Account
    name: str = "server"

    async def load(self, streams: int, wish: Wish) -> Heard:
        ears = [Ear(SENT, stamped=bool(wish.gap)) for _ in range(streams)]
        started = time.monotonic()
        before = self.account.cpu()
        async with trio.open_nursery() as nursery:
            for ear in ears:
                nursery.start_soon(self.listen, wish, ear.hear)
        seconds = time.monotonic() - started
        cpu = self.account.cpu() - before
        transits = [transit for ear in ears for transit in ear.transits]
        firsts = [ear.first - started for ear in ears]
        return Heard(sum(ear.chunks for ear in ears), seconds, cpu, firsts, transits, ears)

    async def watch(self, streams: int, gap: float, seconds: float) -> Heard:
        """So many streams that never end, heard for so long once all of them are under way."""
        ears = [Ear(SENT, stamped=True) for _ in range(streams)]
        async with trio.open_nursery() as nursery:
            for ear in ears:
                nursery.start_soon(self.listen, Wish(ENDLESS, gap), ear.hear)
                await trio.sleep(gap / streams)  # so that they do not all speak at once
            while not all(ear.chunks > 1 for ear in ears):  # noqa: ASYNC110 (ears tell nobody)
                await trio.sleep(gap)
            for ear in ears:
                ear.forget()
            started, before = time.monotonic(), self.account.cpu()
            await trio.sleep(seconds)
            cpu, seconds = self.account.cpu() - before, time.monotonic() - started
            transits = [transit for ear in ears for transit in ear.transits]
            chunks, memory = sum(ear.chunks for ear in ears), self.account.memory()
            nursery.cancel_scope.cancel()
        return Heard(chunks, seconds, cpu, [], transits, ears, memory)

    async def listen(self, wish: Wish, hear: Callable[[bytes], bytes]) -> None:
        """One stream on a connection of its own, from the request to the last byte."""
        stream = await self.connect()
        try:
            await self.ask(stream, wish, hear)
        finally:
            await trio.aclose_forcefully(stream)

    async def ask(
        self, stream: trio.SocketStream, wish: Wish, hear: Callable[[bytes], bytes]
    ) -> None:
        """One stream on a connection that may be used again."""
        await stream.send_all(self.request(wish, stream=True))
        end = b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            data = bytes(await stream.receive_some(READ))
            if not data:
                raise ConnectionError(f"a stream broke off: {end[-300:]!r}")
            hear(data)
            end = (end + data)[-300:] if len(data) < 300 else data[-300:]

    async def connect(self) -> trio.SocketStream:
        where = urlsplit(self.url)
        return await trio.open_tcp_stream(where.hostname or "", where.port or 80)

    def request(self, wish: Wish, *, stream: bool) -> bytes:
        body: dict[str, Any] = {
            "model": MODEL,
            "stream": stream,
            "messages": [{"role": "user", "content": str(wish)}],
        }
        data = _encode(body)
        where = urlsplit(self.url)
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode() + data
