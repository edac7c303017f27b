"""S1 to S3: time to first token, transit time, and throughput."""

from __future__ import annotations

import time
from contextlib import nullcontext

import trio
from attrs import frozen

from pipeline.bench.chunk_counter import SERVER_CHUNK, ChunkCounter
from pipeline.bench.cores import own_core
from pipeline.bench.request import LoadRequest
from pipeline.bench.results import Results, percentile
from pipeline.bench.testbed import ServerTestbed

MS = 1e3


@frozen
class Ttft:
    """S1: one stream after the other: direct, through the server, and direct again.

    The difference of the two direct ones is the noise of the measurement.
    """

    testbed: ServerTestbed
    load: str = "one stream at a time"
    pairs: int = 100
    goals: bool = True

    async def round(self, results: Results) -> None:
        straight: list[float] = []
        through: list[float] = []
        again: list[float] = []
        kept = await self.testbed.server.connect()  # as clients with several requests do
        try:
            for _ in range(self.pairs):
                straight += (await self.testbed.direct.load(1, LoadRequest())).firsts
                counter, asked = ChunkCounter(SERVER_CHUNK), time.monotonic()
                await self.testbed.server.ask(kept, LoadRequest(), counter.feed)
                through.append(counter.first - asked)
                again += (await self.testbed.direct.load(1, LoadRequest())).firsts
        finally:
            await trio.aclose_forcefully(kept)
        added = [(b - a) * MS for a, b in zip(straight, through, strict=True)]
        half, most = (3.0, 8.0) if self.goals else (None, None)
        results.add("ttft", self.load, "added, p50", "ms", percentile(added, 0.5), goal=half)
        results.add("ttft", self.load, "added, p99", "ms", percentile(added, 0.99), goal=most)
        # A slow moment of the backend affects both arms, but not the same pair.
        by_itself = [(b - a) * MS for a, b in zip(straight, again, strict=True)]
        results.add("ttft", self.load, "direct twice, p99", "ms", percentile(by_itself, 0.99))
        apart = percentile(through, 0.99) - percentile(straight + again, 0.99)
        results.add("ttft", self.load, "one p99 less the other", "ms", apart * MS)
        results.spread(
            "ttft", self.load, "direct", "ms", [value * MS for value in straight + again]
        )
        results.spread("ttft", self.load, "server", "ms", [value * MS for value in through])


@frozen
class Paced:
    """S2: paced streams, as models send them; each chunk has its time."""

    testbed: ServerTestbed
    streams: int
    gap: float
    seconds: float = 3.0
    cpu_goal: float | None = None
    goals: bool = True

    @property
    def load(self) -> str:
        return f"{self.streams} streams, a chunk every {self.gap * MS:g} ms"

    async def round(self, results: Results) -> None:
        straight = await self.testbed.direct.watch(self.streams, self.gap, self.seconds)
        through = await self.testbed.server.watch(self.streams, self.gap, self.seconds)
        half, most = (0.5, 2.0) if self.goals else (None, None)
        for share, goal in ((0.5, half), (0.99, most)):
            added = percentile(through.transits, share) - percentile(straight.transits, share)
            results.add(
                "paced", self.load, f"transit added, p{share * 100:g}", "ms", added * MS, goal=goal
            )
        results.add("paced", self.load, "CPU a chunk", "µs", through.micros, goal=self.cpu_goal)
        results.spread("paced", self.load, "direct", "ms", [v * MS for v in straight.transits])
        results.spread("paced", self.load, "server", "ms", [v * MS for v in through.transits])


@frozen
class Burst:
    """S3: streams at full speed."""

    testbed: ServerTestbed
    streams: int
    transport: str
    deltas: int = 2_000
    cpu_goal: float | None = None
    rate_goal: float | None = None
    share_goal: float | None = None
    compared: bool = True
    """Whether the direct path uses the same transport."""
    apart: bool = False
    """Whether the server has its own core."""
    scenario: str = "burst"

    @property
    def load(self) -> str:
        return f"{self.streams} × {self.deltas:,} chunks, {self.transport}"

    async def round(self, results: Results) -> None:
        with own_core(self.testbed.usage.pid) if self.apart else nullcontext():
            await self._round(results)

    async def _round(self, results: Results) -> None:
        request = LoadRequest(self.deltas)
        straight = await self.testbed.direct.load(self.streams, request)
        through = await self.testbed.server.load(self.streams, request)
        name = self.scenario
        results.add(name, self.load, "CPU a chunk", "µs", through.micros, goal=self.cpu_goal)
        results.add(
            name, self.load, "chunks", "/s", through.rate, goal=self.rate_goal, at_least=True
        )
        if self.compared:
            share, goal = through.rate / straight.rate, self.share_goal
            results.add(name, self.load, "of the direct rate", "×", share, goal=goal, at_least=True)


@frozen
class Growth:
    """S3: whether a chunk costs the same in short and long answers, without the request's cost."""

    testbed: ServerTestbed
    few: int = 1_000
    many: int = 100_000

    async def round(self, results: Results) -> None:
        begun = [await self.testbed.server.load(1, LoadRequest(1)) for _ in range(20)]
        request = sum(one.cpu for one in begun) / len(begun)
        short = [await self.testbed.server.load(1, LoadRequest(self.few)) for _ in range(20)]
        long = await self.testbed.server.load(1, LoadRequest(self.many))
        early = (sum(one.cpu for one in short) / len(short) - request) / self.few
        late = (long.cpu - request) / self.many
        load = f"{self.many:,} chunks against {self.few:,}"
        results.add("burst", load, "CPU a chunk", "×", late / early, goal=1.2)
