"""The path to a backend through the server, over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio
from attrs import define

from pipeline.bench.chunk_counter import READ, SERVER_CHUNK, ChunkCounter, LoadResult
from pipeline.bench.process_usage import ProcessUsage
from pipeline.bench.request import MODEL, LoadRequest

ENDLESS: Final = 1_000_000
_encode: Final = msgspec.json.Encoder().encode


@define(eq=False)
class Proxied:
    """A client of Chat Completions with as little CPU cost as possible."""

    url: str
    usage: ProcessUsage

    async def load(self, streams: int, request: LoadRequest) -> LoadResult:
        counters = [ChunkCounter(SERVER_CHUNK, stamped=bool(request.gap)) for _ in range(streams)]
        started = time.monotonic()
        before = self.usage.cpu()
        async with trio.open_nursery() as nursery:
            for counter in counters:
                nursery.start_soon(self.listen, request, counter.feed)
        seconds = time.monotonic() - started
        cpu = self.usage.cpu() - before
        transits = [transit for counter in counters for transit in counter.transits]
        firsts = [counter.first - started for counter in counters]
        return LoadResult(
            sum(counter.chunks for counter in counters), seconds, cpu, firsts, transits, counters
        )

    async def watch(self, streams: int, gap: float, seconds: float) -> LoadResult:
        """Start endless streams, and measure them for some seconds once all are running."""
        async with self.talking(streams, gap, pause=gap / streams) as counters:
            await _until_chunks(counters, 2)
            for counter in counters:
                counter.reset()
            started, before = time.monotonic(), self.usage.cpu()
            await trio.sleep(seconds)
            cpu, seconds = self.usage.cpu() - before, time.monotonic() - started
            transits = [transit for counter in counters for transit in counter.transits]
            chunks, memory = sum(counter.chunks for counter in counters), self.usage.memory()
        return LoadResult(chunks, seconds, cpu, [], transits, counters, memory)

    @asynccontextmanager
    async def talking(
        self, streams: int, gap: float, *, pause: float = 0.0
    ) -> AsyncGenerator[list[ChunkCounter]]:
        """Start endless streams one after the other; entered when all have a first chunk."""
        counters = [ChunkCounter(SERVER_CHUNK, stamped=True) for _ in range(streams)]
        async with trio.open_nursery() as nursery:
            for counter in counters:
                nursery.start_soon(self.listen, LoadRequest(ENDLESS, gap), counter.feed)
                await trio.sleep(pause)  # spreads their chunks over time
            await _until_chunks(counters, 1)
            yield counters
            nursery.cancel_scope.cancel()

    async def listen(self, request: LoadRequest, feed: Callable[[bytes], bytes]) -> None:
        """One stream on its own connection, from the request to the last byte."""
        stream = await self.connect()
        try:
            await self.ask(stream, request, feed)
        finally:
            await trio.aclose_forcefully(stream)

    async def ask(
        self, stream: trio.SocketStream, request: LoadRequest, feed: Callable[[bytes], bytes]
    ) -> None:
        """One stream on a connection that may be reused."""
        await stream.send_all(self.request(request, stream=True))
        end = b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            data = bytes(await stream.receive_some(READ))
            if not data:
                raise ConnectionError(f"a stream broke off: {end[-300:]!r}")
            feed(data)
            end = (end + data)[-300:] if len(data) < 300 else data[-300:]

    async def connect(self) -> trio.SocketStream:
        where = urlsplit(self.url)
        return await trio.open_tcp_stream(where.hostname or "", where.port or 80)

    def request(self, request: LoadRequest, *, stream: bool) -> bytes:
        body: dict[str, Any] = {
            "model": MODEL,
            "stream": stream,
            "messages": [{"role": "user", "content": str(request)}],
        }
        data = _encode(body)
        where = urlsplit(self.url)
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode() + data


async def _until_chunks(counters: Sequence[ChunkCounter], chunks: int) -> None:
    while not all(counter.chunks >= chunks for counter in counters):  # noqa: ASYNC110 (no event to wait for)
        await trio.sleep(0.01)
