"""S7 and S8: answers that come whole, and a server that has just been started."""

from __future__ import annotations

import re
import time

import trio
from attrs import frozen

from pipeline.bench.chunk_counter import READ
from pipeline.bench.request import LoadRequest
from pipeline.bench.results import Results
from pipeline.bench.streams import MS
from pipeline.bench.testbed import ServerTestbed, Transport, fake_testbed

MB = 1e6
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@frozen
class Unstreamed:
    """S7: clients that ask for one whole answer after the other on a connection they keep."""

    testbed: ServerTestbed
    clients: int = 8
    requests: int = 40

    async def round(self, results: Results) -> None:
        usage = self.testbed.usage
        began, cpu = time.monotonic(), usage.cpu()
        async with trio.open_nursery() as nursery:
            for _ in range(self.clients):
                nursery.start_soon(self._ask)
        seconds, spent = time.monotonic() - began, usage.cpu() - cpu
        total = self.clients * self.requests
        load = f"{self.clients} clients, kept connections"
        results.add("whole", load, "requests", "/s", total / seconds, goal=776.0, at_least=True)
        results.add("whole", load, "CPU a request", "ms", spent / total * MS, goal=1.5)

    async def _ask(self) -> None:
        stream = await self.testbed.server.connect()
        request = self.testbed.server.request(LoadRequest(), stream=False)
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
class ColdStart:
    """S8: from nothing to listening, to the first answer; and what it then is at rest."""

    transport: Transport = "lines"
    rest: float = 2.0

    async def round(self, results: Results) -> None:
        async with fake_testbed(self.transport) as testbed:
            answered = time.monotonic()
            await testbed.server.load(1, LoadRequest())
            answered = time.monotonic() - answered
            await trio.sleep(0.5)
            wakeups, cpu = testbed.usage.wakeups(), testbed.usage.cpu()
            await trio.sleep(self.rest)
            woken = (testbed.usage.wakeups() - wakeups) / self.rest
            spent = (testbed.usage.cpu() - cpu) / self.rest
            load = "a new process"
            results.add("cold", load, "until it listens", "s", testbed.started)
            results.add("cold", load, "until the first answer", "s", testbed.started + answered)
            results.add(
                "cold", load, "memory at rest", "MB", testbed.usage.memory() / MB, goal=70.0
            )
            results.add("cold", load, "wake-ups at rest", "/s", woken, goal=0.5)
            results.add("cold", load, "CPU at rest", "ms/s", spent * MS, goal=1.0)
