"""The recipe as a chain: deadlines, and the books that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pipeline.chain import Chain
from pipeline.events import Event, TextDelta, Tick
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.recipe import Pipeline
from pipeline.segment import LATE, UNREAD, Stages
from pipeline.stage import Send, Stage
from pipeline.tasks import SendingSource
from sinks.collect import Collect
from sources.replay import Listed
from tests.support.chain_parts import (
    AsyncDouble,
    Endless,
    Hold,
    Pass,
    Shout,
    StopAfter,
    letters,
    read,
    texts,
)

both_ways = pytest.mark.parametrize("fuse", [False, True])

# -- time ----------------------------------------------------------------------------------------


async def when_something_came(chain: Chain) -> float:
    await chain.receive()
    return trio.current_time()


class Quiet(SendingSource):
    async def run(self, send: Send) -> None:
        await send.send((TextDelta("x", at=trio.current_time()),))
        await trio.sleep(10)


@both_ways
async def test_a_deadline_wakes_a_stage_though_nothing_comes(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    start = trio.current_time()
    came = await read(Pipeline([("hold", Hold)]), Quiet(), when_something_came, fuse=fuse)
    assert came == pytest.approx(start + 1.0)


@both_ways
async def test_recorded_time_decides_though_no_time_passes(fuse: bool) -> None:
    events = [TextDelta("a", at=5.0), TextDelta("b", at=5.9), TextDelta("c", at=6.0)]

    async def bursts(chain: Chain) -> list[str]:
        return [texts(burst) async for burst in chain]

    recipe = Pipeline([("a", Pass), ("hold", Hold)])
    source = Listed(events[:2], events[2:])
    assert await read(recipe, source, bursts, fuse=fuse) == ["ab", "c"]


@both_ways
async def test_recorded_deadlines_are_never_waited_for(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Slow(SendingSource):
        """Recorded time stands still while the reader of the file takes five seconds."""

        real_time = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("a", at=trio.current_time()),))
            await trio.sleep(5)

    start = trio.current_time()
    came = await read(Pipeline([("hold", Hold)]), Slow(), when_something_came, fuse=fuse)
    assert came == pytest.approx(start + 5)


def test_a_tick_wakes_only_the_stages_that_are_due_and_goes_on() -> None:
    woken: list[str] = []

    class Timed(Pass):
        def __init__(self, name: str, deadline: float) -> None:
            super().__init__()
            self._name, self.deadline = name, deadline

        def wake(self, now: float) -> Sequence[Event]:
            woken.append(f"{self._name} at {now:g}")
            return (TextDelta(self._name, at=now),)

    stages = Stages([Timed("early", 1.0), Timed("late", 5.0)])
    stages.take([TextDelta("a", at=0.0)])
    assert stages.deadline == 1.0
    assert stages.take([Tick(1.0)]) == [TextDelta("early", at=1.0), Tick(1.0)]
    assert woken == ["early at 1"]
    assert stages.deadline == 5.0
    stages.take([Tick(5.0)])
    assert woken == ["early at 1", "late at 5"]


def test_a_stage_that_is_due_several_times_before_an_event_is_woken_so_often() -> None:
    class Beats(Pass):
        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline = event.at + 1.0
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            self.deadline = now + 1.0
            return self.make(TextDelta(".", at=now))

    out = Pipeline([("beats", Beats)]).process([TextDelta("a"), TextDelta("b", at=3.5)])
    assert texts(out) == "a...b"
    assert [event.at for event in out] == [0.0, 1.0, 2.0, 3.0, 3.5]


def test_a_stage_that_sets_no_later_deadline_is_woken_once_for_an_event() -> None:
    class Stubborn(Pass):
        deadline = 1.0

        def wake(self, now: float) -> Sequence[Event]:
            self.deadline = now
            return self.make(TextDelta(".", at=now))

    assert texts(Pipeline([("s", Stubborn)]).process([TextDelta("a", at=5.0)])) == ".a"


def test_a_stage_that_is_done_is_not_woken() -> None:
    class Done(Pass):
        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline, self.done = event.at + 1.0, True
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            return self.make(TextDelta("!", at=now))

    stages = Stages([Done()])
    assert list(stages.take([TextDelta("a"), TextDelta("b", at=2.0)])) == [TextDelta("a")]


@both_ways
async def test_a_stage_that_forgets_its_deadline_is_woken_once(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    woken: list[float] = []

    class Forgetful(Pass):
        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline = event.at + 1.0
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            woken.append(now)
            return ()

    start = trio.current_time()
    with trio.fail_after(60):
        await Pipeline([("forgetful", Forgetful)]).run(Quiet(), Collect(), fuse=fuse)
    assert woken == [pytest.approx(start + 1.0)]


@both_ways
async def test_a_stage_may_await(fuse: bool, autojump_clock: trio.testing.MockClock) -> None:
    recipe = Pipeline([("a", Pass), ("double", AsyncDouble), ("loud", Shout)])
    ledger = Ledger()
    out = await recipe.run(Listed(letters("ab")), Collect(), ledger=ledger, fuse=fuse)
    assert texts(out) == "AABB"
    assert (ledger["double"].taken, ledger["double"].given, ledger["double"].made) == (2, 4, 2)


@both_ways
async def test_a_stage_that_awaits_leaves_when_nobody_reads(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    recipe = Pipeline([("double", AsyncDouble), ("stop", lambda: StopAfter(1))])
    assert texts(await recipe.run(Endless(), Collect(), fuse=fuse)) == "x"


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


@both_ways
async def test_what_came_after_the_end_is_entered_as_late(fuse: bool) -> None:
    ledger = Ledger()
    recipe = Pipeline([("stop", lambda: StopAfter(1))])
    await recipe.run(Listed(letters("abc")), Collect(), ledger=ledger, fuse=fuse)
    assert ledger["stop"].dropped == {LATE: 2}
    assert ledger.delivered == 1


@both_ways
async def test_what_nobody_read_is_entered_as_unread(fuse: bool) -> None:
    """A stage with a task of its own has read on meanwhile; one without has not."""

    async def one_burst(chain: Chain) -> None:
        await chain.receive()
        await trio.testing.wait_all_tasks_blocked()

    ledger = Ledger()
    recipe = Pipeline([("a", Pass)])
    source = Listed(letters("a"), letters("bc"))
    await read(recipe, source, one_burst, ledger=ledger, fuse=fuse)
    assert ledger["a"].dropped == ({} if fuse else {UNREAD: 2})
    assert ledger["a"].difference == 0
    assert ledger["a"].given == ledger.delivered == 1


@both_ways
async def test_what_a_stage_holds_for_a_reader_that_left_is_entered_as_unread(fuse: bool) -> None:
    async def leaves(chain: Chain) -> None:
        with pytest.raises(trio.WouldBlock):
            chain.receive_nowait()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            chain.receive_nowait()

    ledger = Ledger()
    await read(Pipeline([("hold", Hold)]), Quiet(), leaves, ledger=ledger, fuse=fuse)
    assert ledger["hold"].dropped == {UNREAD: 1}
    assert ledger["hold"].given == ledger.delivered == 0


def test_the_ledger_of_an_unknown_stage_lists_the_known() -> None:
    ledger = Ledger()
    Pipeline([("a", Pass)]).process([], ledger=ledger)
    with pytest.raises(LookupError, match="there are: a"):
        ledger["b"]
