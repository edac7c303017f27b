"""The way to a backend through the server, over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio
from attrs import define

from pipeline.bench.accounting import Account
from pipeline.bench.ear import READ, SENT, Ear, Heard
from pipeline.bench.wish import MODEL, Wish

ENDLESS: Final = 1_000_000
_encode: Final = msgspec.json.Encoder().encode


@define(eq=False)
class Proxied:
    """A client of Chat Completions that costs as little as a client can."""

    url: str
    account: Account

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
        async with self.talking(streams, gap, pause=gap / streams) as ears:
            await _until_heard(ears, 2)
            for ear in ears:
                ear.forget()
            started, before = time.monotonic(), self.account.cpu()
            await trio.sleep(seconds)
            cpu, seconds = self.account.cpu() - before, time.monotonic() - started
            transits = [transit for ear in ears for transit in ear.transits]
            chunks, memory = sum(ear.chunks for ear in ears), self.account.memory()
        return Heard(chunks, seconds, cpu, [], transits, ears, memory)

    @asynccontextmanager
    async def talking(
        self, streams: int, gap: float, *, pause: float = 0.0
    ) -> AsyncGenerator[list[Ear]]:
        """So many streams that never end, each a pause after the other, all of them heard once."""
        ears = [Ear(SENT, stamped=True) for _ in range(streams)]
        async with trio.open_nursery() as nursery:
            for ear in ears:
                nursery.start_soon(self.listen, Wish(ENDLESS, gap), ear.hear)
                await trio.sleep(pause)  # so that they do not all speak at once
            await _until_heard(ears, 1)
            yield ears
            nursery.cancel_scope.cancel()

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


async def _until_heard(ears: Sequence[Ear], chunks: int) -> None:
    while not all(ear.chunks >= chunks for ear in ears):  # noqa: ASYNC110 (ears tell nobody)
        await trio.sleep(0.01)
