"""The recipe as tasks: deadlines, and the books that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pipeline.chain import Pipeline
from pipeline.events import Burst, Event, TextDelta
from pipeline.lane import LATE, UNREAD, Lane
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.stage import Receive, Send, Stage
from sinks.collect import Collect
from sources.replay import Listed
from tests.support.chain_parts import (
    AsyncDouble,
    Endless,
    Hold,
    Pass,
    Shout,
    StopAfter,
    Waiting,
    letters,
    texts,
)

# -- time ----------------------------------------------------------------------------------------


async def test_a_deadline_wakes_a_stage_though_nothing_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Quiet:
        real_time = True

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x", at=trio.current_time()),))
            await trio.sleep(10)

    class Timed:
        async def run(self, receive: Receive) -> float:
            await receive.receive()
            return trio.current_time()

    start = trio.current_time()
    assert await Pipeline([("hold", Hold)]).run(Quiet(), Timed()) == pytest.approx(start + 1.0)


@pytest.mark.parametrize("fuse", [False, True])
async def test_recorded_time_decides_though_no_time_passes(fuse: bool) -> None:
    events = [TextDelta("a", at=5.0), TextDelta("b", at=5.9), TextDelta("c", at=6.0)]
    seen: list[str] = []

    class Seen:
        async def run(self, receive: Receive) -> None:
            seen.extend([texts(burst) async for burst in receive])

    recipe = Pipeline([("a", Pass), ("hold", Hold)])
    await recipe.run(Listed(events[:2], events[2:]), Seen(), fuse=fuse)
    assert seen == ["ab", "c"]


async def test_recorded_deadlines_are_never_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow:
        """Recorded time stands still while the reader of the file takes five seconds."""

        real_time = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("a", at=trio.current_time()),))
            await trio.sleep(5)

    class Timed:
        async def run(self, receive: Receive) -> float:
            await receive.receive()
            return trio.current_time()

    start = trio.current_time()
    assert await Pipeline([("hold", Hold)]).run(Slow(), Timed()) == pytest.approx(start + 5)


async def test_the_cut_of_a_waiting_source_does_not_wait_for_a_slow_client_either(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Waiting()

    class Slow:
        async def run(self, receive: Receive) -> bool:
            await trio.sleep(5)
            left = source.left_because is not None
            async for _ in receive:
                pass
            return left

    recipe = Pipeline([("a", Pass), ("stop", lambda: StopAfter(1)), ("b", Pass)])
    assert await recipe.run(source, Slow(), fuse=True)


def test_a_fused_lane_wakes_only_the_stages_that_are_due() -> None:
    woken: list[str] = []

    class Timed(Pass):
        def __init__(self, name: str, deadline: float) -> None:
            super().__init__()
            self._name, self.deadline = name, deadline

        def wake(self, now: float) -> Sequence[Event]:
            woken.append(f"{self._name} at {now:g}")
            return (TextDelta(self._name, at=now),)

    lane = Lane([Timed("early", 1.0), Timed("late", 5.0)])
    lane.take([TextDelta("a", at=0.0)])
    lane.wake()
    assert woken == ["early at 1"]
    lane.wake()
    assert woken == ["early at 1", "late at 5"]


async def test_a_stage_that_forgets_its_deadline_is_woken_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    woken: list[float] = []

    class Forgetful(Pass):
        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline = event.at + 1.0
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            woken.append(now)
            return ()

    class Quiet:
        real_time = True

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x", at=trio.current_time()),))
            await trio.sleep(10)

    start = trio.current_time()
    with trio.fail_after(60):
        await Pipeline([("forgetful", Forgetful)]).run(Quiet(), Collect())
    assert woken == [pytest.approx(start + 1.0)]


async def test_a_stage_may_await(autojump_clock: trio.testing.MockClock) -> None:
    recipe = Pipeline([("a", Pass), ("double", AsyncDouble), ("loud", Shout)])
    ledger = Ledger()
    out = await recipe.run(Listed(letters("ab")), Collect(), ledger=ledger)
    assert texts(out) == "AABB"
    assert (ledger["double"].taken, ledger["double"].given, ledger["double"].made) == (2, 4, 2)


async def test_a_stage_that_awaits_leaves_when_nobody_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recipe = Pipeline([("double", AsyncDouble), ("stop", lambda: StopAfter(1))])
    assert texts(await recipe.run(Endless(), Collect())) == "x"


# -- the books -----------------------------------------------------------------------------------


def test_a_stage_that_keeps_no_books_is_settled_for() -> None:
    class Eat(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return ()

    class Twice(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return (event, event)

    ledger = Ledger()
    Pipeline([("twice", Twice), ("eat", Eat)]).process(letters("ab"), ledger=ledger)
    assert ledger["twice"].made == 2
    assert ledger["eat"].dropped == {UNEXPLAINED: 4}
    assert ledger.delivered == 0


async def test_what_came_after_the_end_is_entered_as_late() -> None:
    ledger = Ledger()
    recipe = Pipeline([("stop", lambda: StopAfter(1))])
    await recipe.run(Listed(letters("abc")), Collect(), ledger=ledger)
    assert ledger["stop"].dropped == {LATE: 2}
    assert ledger.delivered == 1


async def test_what_nobody_read_is_entered_as_unread() -> None:
    class OneBurst:
        async def run(self, receive: Receive) -> Burst:
            burst = await receive.receive()
            await trio.testing.wait_all_tasks_blocked()
            return burst

    ledger = Ledger()
    recipe = Pipeline([("a", Pass)])
    await recipe.run(Listed(letters("a"), letters("bc")), OneBurst(), ledger=ledger)
    assert ledger["a"].dropped == {UNREAD: 2}
    assert ledger["a"].difference == 0
    assert ledger["a"].given == ledger.delivered == 1


def test_the_ledger_of_an_unknown_stage_lists_the_known() -> None:
    ledger = Ledger()
    Pipeline([("a", Pass)]).process([], ledger=ledger)
    with pytest.raises(LookupError, match="there are: a"):
        ledger["b"]
