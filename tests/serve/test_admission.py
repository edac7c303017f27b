"""How much at once, and in whose turn."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProxyError
from pipeline.serve.access.admission import Admission, Limits


async def refusal(admission: Admission, key: str, turns: int = 1) -> ProxyError:
    with pytest.raises(ProxyError) as refused:
        await admission.enter(key, turns)
    return refused.value


async def test_there_is_room_until_there_is_none() -> None:
    admission = Admission(Limits(concurrency=2, per_key=2, queue=0))
    first = await admission.enter("a")
    await admission.enter("a")
    failure = (await refusal(admission, "b")).failure
    assert (failure.status, failure.code, failure.retry_after) == (429, "rate_limit_exceeded", 1.0)
    first.close()
    await admission.enter("b")
    assert admission.running == 2


async def test_a_full_queue_is_an_overloaded_server(autojump_clock: trio.abc.Clock) -> None:
    admission = Admission(Limits(concurrency=1, per_key=1, queue=2, keys=2))
    await admission.enter("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.enter, "b")
        nursery.start_soon(admission.enter, "c")
        await trio.testing.wait_all_tasks_blocked()
        failure = (await refusal(admission, "d")).failure
        assert (failure.status, failure.code) == (503, "server_is_overloaded")
        nursery.cancel_scope.cancel()
    assert admission.waiting == 0


async def test_who_waits_too_long_is_sent_away(autojump_clock: trio.abc.Clock) -> None:
    admission = Admission(Limits(concurrency=1, patience=5))
    place = await admission.enter("a")
    began = trio.current_time()
    failure = (await refusal(admission, "b")).failure
    assert trio.current_time() - began == pytest.approx(5)
    assert (failure.status, failure.retry_after) == (503, 1.0)
    assert admission.waiting == 0
    place.close()
    await admission.enter("b")


async def test_one_keys_backlog_does_not_delay_another(autojump_clock: trio.abc.Clock) -> None:
    admission = Admission(Limits(concurrency=1, per_key=1, queue=8, keys=2))
    place = await admission.enter("greedy")
    served: list[str] = []

    async def ask(key: str, nursery: trio.Nursery) -> None:
        with await admission.enter(key):
            served.append(key)

    async with trio.open_nursery() as nursery:
        for key in ("greedy", "greedy", "greedy", "modest"):
            nursery.start_soon(ask, key, nursery)
            await trio.testing.wait_all_tasks_blocked()
        place.close()
    assert served == ["greedy", "modest", "greedy", "greedy"]


async def test_a_key_over_its_own_limit_waits_while_others_pass() -> None:
    admission = Admission(Limits(concurrency=10, per_key=1, queue=4))
    mine = await admission.enter("a")
    async with trio.open_nursery() as nursery:
        entered = trio.Event()

        async def wait() -> None:
            await admission.enter("a")
            entered.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await admission.enter("b")
        assert not entered.is_set()
        mine.close()
        await entered.wait()


async def test_who_leaves_the_queue_takes_no_place(autojump_clock: trio.abc.Clock) -> None:
    admission = Admission(Limits(concurrency=1))
    place = await admission.enter("a")
    with trio.move_on_after(1):
        await admission.enter("a")
    assert admission.waiting == 0
    place.close()
    assert admission.running == 0


async def test_a_place_that_came_free_as_its_owner_left_is_free() -> None:
    admission = Admission(Limits(concurrency=1))
    place = await admission.enter("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.enter, "a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        place.close()  # calls the waiter, who has left without knowing it yet
    assert (admission.running, admission.waiting) == (0, 0)


async def test_many_choices_take_many_places() -> None:
    admission = Admission(Limits(concurrency=4, per_key=4, queue=0))
    with await admission.enter("a", 3):
        await refusal(admission, "a", 2)
        with await admission.enter("a", 1):
            assert admission.running == 4
    with await admission.enter("a", 100):  # as much as there is
        assert admission.running == 4
    assert admission.running == 0


async def test_an_allowance_fills_over_the_minute(autojump_clock: trio.abc.Clock) -> None:
    admission = Admission(Limits(per_minute=2))
    for _ in range(2):
        (await admission.enter("a")).close()
    failure = (await refusal(admission, "a")).failure
    assert (failure.status, failure.code) == (429, "rate_limit_exceeded")
    assert failure.retry_after == pytest.approx(30)
    (await admission.enter("b")).close()  # everybody has their own
    await trio.sleep(30)
    (await admission.enter("a")).close()
    await refusal(admission, "a")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 5)), max_size=20)
)
def test_nobody_is_forgotten_and_no_limit_is_passed(asked: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        admission = Admission(Limits(concurrency=4, per_key=3, queue=100, patience=1e6, keys=1))
        most: list[int] = []

        async def ask(key: str, turns: int, seconds: int) -> None:
            place = await admission.enter(key, turns)
            with place:
                most.append(admission.running)
                await trio.sleep(seconds)

        async with trio.open_nursery() as nursery:
            for one in asked:
                nursery.start_soon(ask, *one)
        assert len(most) == len(asked)
        assert max(most, default=0) <= 4
        assert (admission.running, admission.waiting) == (0, 0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
