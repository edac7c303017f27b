"""The current speed of the machine, independent of this project's code."""

from __future__ import annotations

import time

import trio
from attrs import frozen

from pipeline.bench.results import Results


@frozen
class Baseline:
    """The CPU for one item through a trio channel, the basic cost of a wake-up.

    It shows when the machine is busy or slower than before.
    """

    items: int = 5_000

    async def round(self, results: Results) -> None:
        send, receive = trio.open_memory_channel[int](0)  # noqa: TID251 (this is what is measured)
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fill, send)
            async for _ in receive:
                pass
        hop = (time.process_time() - began) / self.items * 1e6
        results.add("machine", "trio alone", "a channel's hop", "µs", hop)

    async def _fill(self, send: trio.MemorySendChannel[int]) -> None:
        with send:
            for number in range(self.items):
                await send.send(number)
