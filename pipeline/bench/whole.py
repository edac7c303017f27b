"""S7 and S8: answers that come whole, and a server that has just been started."""

from __future__ import annotations

import re
import time

import trio
from attrs import frozen

from pipeline.bench.bed import Bed, Way, fake_bed
from pipeline.bench.ear import READ
from pipeline.bench.figures import Book
from pipeline.bench.streams import MS
from pipeline.bench.wish import Wish

MB = 1e6
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@frozen
class Whole:
    """S7: clients that ask for one whole answer after the other on a connection they keep."""

    bed: Bed
    clients: int = 8
    requests: int = 40

    async def round(self, book: Book) -> None:
        account = self.bed.account
        began, cpu = time.monotonic(), account.cpu()
        async with trio.open_nursery() as nursery:
            for _ in range(self.clients):
                nursery.start_soon(self._ask)
        seconds, spent = time.monotonic() - began, account.cpu() - cpu
        total = self.clients * self.requests
        load = f"{self.clients} clients, kept connections"
        book.add("whole", load, "requests", "/s", total / seconds, goal=776.0, at_least=True)
        book.add("whole", load, "CPU a request", "ms", spent / total * MS, goal=1.5)

    async def _ask(self) -> None:
        stream = await self.bed.server.connect()
        request = self.bed.server.request(Wish(), stream=False)
        try:
            for _ in range(self.requests):
                await stream.send_all(request)
                await _whole_answer(stream)
        finally:
            await trio.aclose_forcefully(stream)


async def _whole_answer(stream: trio.SocketStream) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise ConnectionError(f"a request failed: {data[:300]!r}")
    while len(body) < int(length[1]):
        body += await _more(stream)


async def _more(stream: trio.SocketStream) -> bytes:
    data = bytes(await stream.receive_some(READ))
    if not data:
        raise ConnectionError("the server closed a connection in the middle of an answer")
    return data


@frozen
class Cold:
    """S8: from nothing to listening, to the first answer; and what it then is at rest."""

    way: Way = "lines"
    rest: float = 2.0

    async def round(self, book: Book) -> None:
        async with fake_bed(self.way) as bed:
            answered = time.monotonic()
            await bed.server.load(1, Wish())
            answered = time.monotonic() - answered
            await trio.sleep(0.5)
            wakeups, cpu = bed.account.wakeups(), bed.account.cpu()
            await trio.sleep(self.rest)
            woken = (bed.account.wakeups() - wakeups) / self.rest
            spent = (bed.account.cpu() - cpu) / self.rest
            load = "a new process"
            book.add("cold", load, "until it listens", "s", bed.started)
            book.add("cold", load, "until the first answer", "s", bed.started + answered)
            book.add("cold", load, "memory at rest", "MB", bed.account.memory() / MB, goal=70.0)
            book.add("cold", load, "wake-ups at rest", "/s", woken, goal=0.5)
            book.add("cold", load, "CPU at rest", "ms/s", spent * MS, goal=1.0)
