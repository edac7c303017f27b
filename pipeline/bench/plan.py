"""The scenarios, and a run of them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol

import trio
from attrs import frozen

from pipeline.bench.baseline import Baseline
from pipeline.bench.many_clients import Disconnects, IdleStreams, LoadBesideIdle, StalledReaders
from pipeline.bench.real import real_testbed
from pipeline.bench.results import Results
from pipeline.bench.streams import Burst, Growth, Paced, Ttft
from pipeline.bench.testbed import ServerTestbed, Transport, fake_testbed
from pipeline.bench.unstreamed import ColdStart, Unstreamed

REAL: Final = ("ttft", "paced", "burst")
"""The scenarios for the real Codex: the others do not depend on the backend."""


class Scenario(Protocol):
    """Something that is measured once a round."""

    async def round(self, results: Results) -> None:
        """Measure every arm once, one after the other."""
        ...


async def _leave_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


@frozen
class Plan:
    """What to measure, and how often."""

    names: Collection[str]
    rounds: int = 5
    quick: bool = False
    """Very small loads, only to try whether it works."""
    real: bool = False

    async def run(self, results: Results, progress: Callable[[str], None]) -> bool:
        """Run all scenarios, round by round, so that a slow minute affects all of them.

        An interrupted run keeps its results so far and leaves no process behind. The result says
        whether the run is complete.
        """
        whole = False
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_on, signals, nursery.cancel_scope)
                async with self._open() as scenarios:
                    for number in range(self.rounds):
                        for name, scenario in scenarios:
                            progress(f"round {number + 1} of {self.rounds}: {name}")
                            await scenario.round(results)
                whole = True
                nursery.cancel_scope.cancel()
        progress("")
        return whole

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[list[tuple[str, Scenario]]]:
        async with AsyncExitStack() as stack:
            if self.real:
                testbed = await stack.enter_async_context(real_testbed())
                found = self._real(testbed)
            else:
                testbeds: dict[Transport, ServerTestbed] = {}
                for transport in self._transports():
                    testbeds[transport] = await stack.enter_async_context(fake_testbed(transport))
                found = self._fake(testbeds)
            chosen = [(name, scenario) for name, scenario in found if name in self.names]
            yield [("the machine", Baseline()), *chosen]

    def _transports(self) -> Sequence[Transport]:
        if "burst" in self.names:
            return "lines", "blocks", "socket"
        return ("lines",)

    def _fake(self, testbeds: dict[Transport, ServerTestbed]) -> list[tuple[str, Scenario]]:
        lines, blocks, socket = testbeds["lines"], testbeds.get("blocks"), testbeds.get("socket")
        quick = self.quick
        deltas = 100 if quick else 2_000
        found: list[tuple[str, Scenario]] = [
            ("ttft", Ttft(lines, pairs=3 if quick else 100)),
            ("paced", Paced(lines, 16, 0.02, 0.1 if quick else 3.0, cpu_goal=250.0)),
            ("paced", Paced(lines, 100, 0.05, 0.1 if quick else 3.0, cpu_goal=120.0)),
            ("held", IdleStreams(10, 0.3, 0.05) if quick else IdleStreams()),
            ("held", LoadBesideIdle(10, 2, 100) if quick else LoadBesideIdle()),
            (
                "stalled",
                StalledReaders(lines, 9, 1, 0.1, 0.02, 2_000) if quick else StalledReaders(lines),
            ),
            ("storm", Disconnects(lines, streams=8 if quick else 64)),
            ("whole", Unstreamed(lines, 2, 3) if quick else Unstreamed(lines)),
            ("cold", ColdStart(rest=0.2 if quick else 2.0)),
        ]
        if blocks is not None and socket is not None:
            found[3:3] = [
                ("burst", Burst(blocks, 1, "in blocks", deltas)),
                ("burst", Burst(blocks, 16, "in blocks", deltas, 10.0, 80_000.0)),
                ("burst", Burst(blocks, 128, "in blocks", deltas)),
                ("burst", Burst(lines, 16, "line by line", deltas, 20.0)),
                ("burst", Burst(socket, 16, "over a WebSocket", deltas, 60.0, compared=False)),
                ("burst", Growth(blocks, 100, 1_000) if quick else Growth(blocks)),
            ]
        return found

    def _real(self, testbed: ServerTestbed) -> list[tuple[str, Scenario]]:
        quick = self.quick
        deltas = 100 if quick else 2_000
        found: list[tuple[str, Scenario]] = [
            ("ttft", Ttft(testbed, pairs=2 if quick else 100)),
            ("paced", Paced(testbed, 16, 0.02, 0.1 if quick else 3.0)),
            ("burst", Burst(testbed, 16, "Codex", deltas, 35.0, None, 0.6)),
        ]
        if len(os.sched_getaffinity(0)) > 1:
            apart = Burst(testbed, 16, "a core of its own", deltas, 35.0, None, 0.9, apart=True)
            found.append(("burst", apart))
        return found
