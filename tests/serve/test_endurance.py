"""A server that has answered very many requests is what it was after the first few."""

from __future__ import annotations

import pytest
import trio

from pipeline.bench.request import LoadRequest
from pipeline.bench.testbed import ServerTestbed, fake_testbed

AT_ONCE = 8
MB = 1_000_000


async def ask(testbed: ServerTestbed, requests: int) -> None:
    for _ in range(requests // AT_ONCE):
        await testbed.server.load(AT_ONCE, LoadRequest(3))


@pytest.mark.parametrize(
    "requests",
    [pytest.param(1_000, id="1 000"), pytest.param(10_000, id="10 000", marks=pytest.mark.deep)],
)
async def test_nothing_grows_over_many_requests(requests: int) -> None:
    async with fake_testbed("lines") as testbed:
        await ask(testbed, 1_000)
        before, files = testbed.usage.memory(), testbed.usage.files()
        await ask(testbed, requests)
        grown = testbed.usage.memory() - before
        assert grown < 3 * MB, f"{grown / MB:.1f} MB more after {requests:,} requests"
        assert testbed.usage.files() <= files + AT_ONCE  # the last connections may be closing
        with trio.fail_after(30):
            while len(testbed.logged("deleted")) < len(testbed.logged("started")):  # noqa: ASYNC110
                await trio.sleep(0.02)
