"""A server that has answered very many requests is what it was after the first few."""

from __future__ import annotations

import pytest
import trio

from pipeline.bench.bed import Bed, fake_bed
from pipeline.bench.wish import Wish

AT_ONCE = 8
MB = 1_000_000


async def ask(bed: Bed, requests: int) -> None:
    for _ in range(requests // AT_ONCE):
        await bed.server.load(AT_ONCE, Wish(3))


@pytest.mark.parametrize(
    "requests",
    [pytest.param(1_000, id="1 000"), pytest.param(10_000, id="10 000", marks=pytest.mark.deep)],
)
async def test_nothing_grows_over_many_requests(requests: int) -> None:
    async with fake_bed("lines") as bed:
        await ask(bed, 1_000)
        before, files = bed.account.memory(), bed.account.files()
        await ask(bed, requests)
        grown = bed.account.memory() - before
        assert grown < 3 * MB, f"{grown / MB:.1f} MB more after {requests:,} requests"
        assert bed.account.files() <= files + AT_ONCE  # the last connections may be closing
        with trio.fail_after(5):
            while len(bed.told("deleted")) < len(bed.told("started")):  # noqa: ASYNC110
                await trio.sleep(0.02)
