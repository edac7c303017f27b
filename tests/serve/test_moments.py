"""Something that is waited for, or has come before anybody looked."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pipeline.serve.moments import Moment


async def test_who_comes_late_need_not_wait() -> None:
    moment = Moment()
    moment.set()
    assert moment.is_set()
    with trio.fail_after(1):
        await moment.wait()


@pytest.mark.parametrize("waiting", [1, 3])
async def test_all_who_wait_are_woken_and_again_after_it_was_cleared(waiting: int) -> None:
    moment = Moment()
    for _ in range(2):
        moment.clear()
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(waiting):
                    nursery.start_soon(moment.wait)
                await trio.testing.wait_all_tasks_blocked()
                assert len(nursery.child_tasks) == waiting
                moment.set()


async def test_who_waits_goes_on_waiting_when_it_is_cleared_meanwhile() -> None:
    moment = Moment()
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(moment.wait)
            await trio.testing.wait_all_tasks_blocked()
            moment.clear()
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks
            moment.set()
