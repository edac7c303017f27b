"""S4 to S6: many streams at once, stalled readers, and clients that disconnect together."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

import trio
from attrs import frozen

from pipeline.bench.chunk_counter import READ, SERVER_CHUNK, ChunkCounter
from pipeline.bench.request import LoadRequest
from pipeline.bench.results import Results, percentile
from pipeline.bench.streams import MS
from pipeline.bench.testbed import ServerTestbed, fake_testbed

KIB = 1024
HOUR = 3_600.0
LOADS = 5


@frozen
class IdleStreams:
    """S4: memory, CPU and jitter of very many streams with one chunk a second."""

    streams: int = 1_000
    seconds: float = 6.0
    gap: float = 1.0

    async def round(self, results: Results) -> None:
        async with fake_testbed("lines") as testbed:  # a new process, for its memory
            await testbed.server.load(
                16, LoadRequest(10)
            )  # warm up: the first requests allocate more
            before = testbed.usage.memory()
            result = await testbed.server.watch(self.streams, self.gap, self.seconds)
        name, load = "held", f"{self.streams:,} streams, a chunk every {self.gap:g} s"
        each = (result.memory - before) / self.streams / KIB
        results.add(name, load, "memory a stream", "KiB", each, goal=60.0)
        gaps = [b - a for counter in result.counters for a, b in pairwise(counter.arrivals)]
        jitter = [abs(gap - self.gap) * MS for gap in gaps]
        results.add(name, load, "jitter, p50", "ms", percentile(jitter, 0.5))
        results.add(name, load, "jitter, p99", "ms", percentile(jitter, 0.99))
        results.add(name, load, "CPU a chunk", "µs", result.micros)
        results.spread(name, load, "server", "ms", jitter)


@frozen
class LoadBesideIdle:
    """S4: whether a chunk costs more while very many quiet streams are open."""

    quiet: int = 1_000
    streams: int = 16
    deltas: int = 2_000

    async def round(self, results: Results) -> None:
        async with fake_testbed("blocks") as testbed:
            alone = await self._typical(testbed)
            async with testbed.server.talking(self.quiet, gap=HOUR):
                beside = await self._typical(testbed)
        load = f"{self.streams} × {self.deltas:,} chunks beside {self.quiet:,} quiet streams"
        results.add("held", load, "CPU a chunk", "×", beside / alone, goal=1.2)

    async def _typical(self, testbed: ServerTestbed) -> float:
        """The CPU of a chunk: the median of a few loads."""
        await _until_quiet(testbed)
        loads = [
            await testbed.server.load(self.streams, LoadRequest(self.deltas)) for _ in range(LOADS)
        ]
        return median(one.micros for one in loads)


@frozen
class StalledReaders:
    """S5: paced streams alone, and beside clients that stopped reading."""

    testbed: ServerTestbed
    healthy: int = 36
    stalled: int = 4
    seconds: float = 2.0
    gap: float = 0.02
    flood: int = 40_000

    async def round(self, results: Results) -> None:
        alone = await self.testbed.server.watch(self.healthy, self.gap, self.seconds)
        async with trio.open_nursery() as nursery:
            for _ in range(self.stalled):
                await nursery.start(self._stall)
            await _until_quiet(self.testbed)
            beside = await self.testbed.server.watch(self.healthy, self.gap, self.seconds)
            nursery.cancel_scope.cancel()
        load = f"{self.healthy} streams beside {self.stalled} stalled"
        for share in (0.5, 0.99):
            more = percentile(beside.transits, share) - percentile(alone.transits, share)
            results.add("stalled", load, f"transit added, p{share * 100:g}", "ms", more * MS)
        results.add("stalled", load, "CPU a chunk", "×", beside.micros / alone.micros, goal=1.1)
        results.spread("stalled", load, "all read", "ms", [value * MS for value in alone.transits])
        results.spread("stalled", load, "a tenth stalled", "ms", [v * MS for v in beside.transits])

    async def _stall(self, task_status: trio.TaskStatus[None]) -> None:
        """Request many deltas, read the first ones, and then stop reading."""
        stream = await self.testbed.server.connect()
        try:
            await stream.send_all(self.testbed.server.request(LoadRequest(self.flood), stream=True))
            await stream.receive_some(1)
            task_status.started()
            await trio.sleep_forever()
        finally:
            await trio.aclose_forcefully(stream)


@frozen
class Disconnects:
    """S6: clients that all disconnect at the same moment during their answers."""

    testbed: ServerTestbed
    streams: int = 64
    limit: float = 10.0

    async def round(self, results: Results) -> None:
        await _until_quiet(self.testbed)
        usage, mark = self.testbed.usage, time.monotonic_ns()
        files = usage.files()
        streams = [await self._begun(str(number)) for number in range(self.streams)]
        left: dict[str, int] = {}
        for number, stream in enumerate(streams):
            left[str(number)] = time.monotonic_ns()
            await trio.aclose_forcefully(stream)
        with trio.move_on_after(self.limit):
            while not set(left) <= {tag for tag, _ in self._since(mark, "deleted")}:  # noqa: ASYNC110
                await trio.sleep(0.02)
        notes = [note for note in self._since(mark, "interrupted") if note[0] in left]
        times = [(at - left[tag]) / 1e6 for tag, at in notes]
        load = f"{self.streams} clients leave at once"
        results.add("storm", load, "until interrupted, p50", "ms", percentile(times, 0.5))
        results.add(
            "storm", load, "until interrupted, p99", "ms", percentile(times, 0.99), goal=25.0
        )
        once = len(notes) == len({tag for tag, _ in notes}) == self.streams
        results.add(
            "storm", load, "each interrupted once", "", float(once), goal=1.0, at_least=True
        )
        results.add("storm", load, "files left open", "", float(usage.files() - files), goal=0.0)
        results.spread("storm", load, "server", "ms", times)

    async def _begun(self, tag: str) -> trio.SocketStream:
        """A stream whose first chunk has come."""
        stream = await self.testbed.server.connect()
        await stream.send_all(
            self.testbed.server.request(LoadRequest(100_000, 0.05, tag=tag), stream=True)
        )
        counter = ChunkCounter(SERVER_CHUNK)
        while not counter.chunks:
            counter.feed(bytes(await stream.receive_some(READ)))
        return stream

    def _since(self, mark: int, what: str) -> list[tuple[str, int]]:
        return [
            (note["tag"], note["at"]) for note in self.testbed.logged(what) if note["at"] > mark
        ]


async def _until_quiet(testbed: ServerTestbed) -> None:
    """Wait until the server is idle because all buffers are full, with a timeout."""
    for _ in range(100):
        before = testbed.usage.cpu()
        await trio.sleep(0.1)
        if testbed.usage.cpu() - before < 0.005:
            return
