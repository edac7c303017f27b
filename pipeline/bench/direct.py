"""The direct path to a backend, as the reference."""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Final

import msgspec
import trio
from attrs import define, evolve, field

from pipeline.bench.chunk_counter import BACKEND_CHUNK, READ, ChunkCounter, LoadResult
from pipeline.bench.request import MODEL, LoadRequest
from pipeline.loose_json import Json, as_json, text_of
from sources.app_server.process.supervisor import NOISE
from sources.app_server.transport.stdio import widen

_encode: Final = msgspec.json.Encoder().encode


@define(eq=False)
class Direct:
    """Uses an app-server's pipes directly and reads at full speed."""

    process: trio.Process
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
                # The same opt-outs and the same pipe size as the server.
                "capabilities": {"experimentalApi": True, "optOutNotificationMethods": [*NOISE]},
            }
            await direct._ask("initialize", hello)
            yield direct
            nursery.cancel_scope.cancel()

    async def load(self, streams: int, request: LoadRequest) -> LoadResult:
        return await self._play([request] * streams)

    async def _play(self, requests: list[LoadRequest]) -> LoadResult:
        streams, pending = len(requests), iter(requests)
        counter = ChunkCounter(BACKEND_CHUNK, stamped=bool(requests[0].gap))
        started = time.monotonic()
        begun: dict[int, str] = {}
        for _ in range(streams):
            begun[self._post("thread/start", _thread())] = "thread/start"
            await self._flush()
        threads: list[str] = []
        ended = 0
        while ended < streams:
            whole = counter.feed(await self._read())
            for line in whole.splitlines() if begun else ():
                if line.startswith((b'{"id":', b'{"result"')) or b'"id":' in line[:200]:
                    message = as_json(msgspec.json.decode(line))
                    await self._answered(message, begun, threads, pending)
            ended += whole.count(b'"turn/completed"')
        seconds = time.monotonic() - started
        for thread in threads:
            await self._ask("thread/delete", {"threadId": thread})
        return LoadResult(
            counter.chunks, seconds, 0.0, [counter.first - started], counter.transits, [counter]
        )

    async def watch(self, streams: int, gap: float, seconds: float) -> LoadResult:
        """Start streams one after the other, and measure once all are running."""
        rounds = ceil(seconds / gap) + 2
        requests = [
            LoadRequest(rounds, gap, after=number * gap / streams) for number in range(streams)
        ]
        result = await self._play(requests)
        return evolve(result, transits=result.transits[2 * streams :])

    async def _answered(
        self,
        message: Json,
        begun: dict[int, str],
        threads: list[str],
        requests: Iterator[LoadRequest],
    ) -> None:
        method = begun.pop(message.get("id", -1), "")
        if method == "thread/start":
            thread = text_of(as_json(as_json(message.get("result")).get("thread")).get("id"))
            threads.append(thread)
            item = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": str(next(requests))}],
            }
            begun[self._post("thread/inject_items", {"threadId": thread, "items": [item]})] = thread
        elif method in threads:
            turn: Json = {"threadId": method, "input": [], "model": MODEL}
            begun[self._post("turn/start", turn)] = "turn/start"
        await self._flush()

    # -- minimal JSON-RPC ----------------------------------------------------------------------

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
        counter = ChunkCounter(b"\0")
        while True:
            for line in counter.feed(await self._read()).splitlines():
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
