"""The recipe and its running: editing, tasks and channels, ends, cuts and failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pipeline.chain import Pipeline
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, TextDelta, TurnEnd
from pipeline.lane import LATE, UNREAD, Lane
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.stage import AsyncStage, Receive, Send, Stage
from sinks.collect import Collect
from sources.replay import Listed


class Pass(Stage):
    def feed(self, event: Event) -> Sequence[Event]:
        return (event,)


class Shout(Stage):
    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, TextDelta):
            return self.swap(event, TextDelta(event.text.upper(), at=event.at))
        return (event,)


class StopAfter(Stage):
    """Lets so many events pass and is done."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def feed(self, event: Event) -> Sequence[Event]:
        self.left -= 1
        self.done = self.left == 0
        return (event,)


class Hold(Stage):
    """Holds everything until it is woken, a second after the first event, or closed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Event] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if not self.held:
            self.deadline = event.at + 1.0
        self.held.append(event)
        return ()

    def wake(self, now: float) -> Sequence[Event]:
        return self.close()

    def close(self) -> Sequence[Event]:
        held, self.held = self.held, []
        return held


class AsyncDouble(AsyncStage):
    """Sends every event twice, after a wait."""

    async def run(self, receive: Receive, send: Send) -> None:
        async for burst in receive:
            await trio.sleep(1)
            await send.send(tuple(event for event in burst for _ in range(2)))


def texts(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def letters(word: str) -> list[Event]:
    return [TextDelta(letter) for letter in word]


# -- running as tasks ----------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [False, True])
async def test_tasks_and_plain_processing_agree(fuse: bool) -> None:
    recipe = Pipeline([("a", Pass), ("loud", Shout), ("hold", Hold), ("b", Pass)])
    events = letters("hello")
    collected = await recipe.run(Listed(events[:2], events[2:]), Collect(), fuse=fuse)
    assert collected == recipe.process(events)
    assert texts(collected) == "HELLO"


async def test_an_empty_recipe_is_a_pipe() -> None:
    assert texts(await Pipeline().run(Listed(letters("ab")), Collect())) == "ab"


class Endless:
    """A live source: it sends for ever, and remembers how it was made to leave."""

    real_time = True

    def __init__(self) -> None:
        self.sent = 0
        self.left_because: type[BaseException] | None = None

    async def run(self, send: Send) -> None:
        try:
            while True:
                await send.send((TextDelta("x", at=trio.current_time()),))
                self.sent += 1
        except BaseException as error:
            self.left_because = type(error)
            raise


@pytest.mark.parametrize("fuse", [False, True])
async def test_a_stage_that_is_done_makes_the_source_leave(fuse: bool) -> None:
    source = Endless()
    recipe = Pipeline([("a", Pass), ("stop", lambda: StopAfter(3)), ("b", Pass)])
    assert texts(await recipe.run(source, Collect(), fuse=fuse)) == "xxx"
    assert source.left_because in (trio.BrokenResourceError, trio.Cancelled)


class Waiting:
    """A live source that has said something and waits for its backend."""

    real_time = True

    def __init__(self) -> None:
        self.left_because: type[BaseException] | None = None

    async def run(self, send: Send) -> None:
        await send.send((TextDelta("x", at=trio.current_time()),))
        try:
            await trio.sleep_forever()
        except BaseException as error:
            self.left_because = type(error)
            raise


@pytest.mark.parametrize("fuse", [False, True])
async def test_a_source_that_waits_leaves_too_when_a_stage_is_done(fuse: bool) -> None:
    source, ledger = Waiting(), Ledger()
    recipe = Pipeline([("a", Pass), ("b", Pass), ("stop", lambda: StopAfter(1)), ("c", Pass)])
    with trio.fail_after(5):
        assert texts(await recipe.run(source, Collect(), ledger=ledger, fuse=fuse)) == "x"
    assert source.left_because is trio.Cancelled
    assert [(books.given, dict(books.dropped)) for books in ledger] == [(1, {})] * 4


async def test_a_source_that_waits_leaves_too_when_the_sink_has_enough(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class One:
        async def run(self, receive: Receive) -> Burst:
            return await receive.receive()

    source = Waiting()
    with trio.fail_after(5):
        await Pipeline([("a", Pass), ("double", AsyncDouble)]).run(source, One())
    assert source.left_because is trio.Cancelled


async def test_a_sink_that_has_enough_makes_the_source_leave() -> None:
    class One:
        async def run(self, receive: Receive) -> Burst:
            return await receive.receive()

    source = Endless()
    assert len(await Pipeline([("a", Pass)]).run(source, One())) == 1
    assert source.left_because is trio.BrokenResourceError


async def test_the_cut_does_not_wait_for_a_slow_client() -> None:
    """The source is told to leave before the client has taken the last burst."""
    source = Endless()
    left_before_delivery: list[bool] = []

    class Slow:
        async def run(self, receive: Receive) -> None:
            await trio.testing.wait_all_tasks_blocked()
            left_before_delivery.append(source.left_because is not None)
            async for _ in receive:
                pass

    await Pipeline([("stop", lambda: StopAfter(1))]).run(source, Slow())
    assert left_before_delivery == [True]


async def test_a_client_that_leaves_cancels_every_task() -> None:
    source = Endless()
    with trio.CancelScope() as scope:

        class Leaving:
            async def run(self, receive: Receive) -> None:
                await receive.receive()
                scope.cancel()
                await trio.sleep_forever()

        await Pipeline([("a", Pass)]).run(source, Leaving())
    assert scope.cancelled_caught
    assert source.left_because is trio.Cancelled


async def test_the_source_may_clean_up_before_the_run_ends() -> None:
    cleaned: list[str] = []

    class Tidy(Endless):
        async def run(self, send: Send) -> None:
            try:
                await super().run(send)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                    cleaned.append("interrupt")

    await Pipeline([("stop", lambda: StopAfter(1))]).run(Tidy(), Collect())
    assert cleaned == ["interrupt"]


async def test_a_dead_backend_is_not_taken_for_a_client_that_left() -> None:
    class Dead:
        real_time = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x"),))
            raise trio.BrokenResourceError("the backend's pipe broke")

    with pytest.raises(trio.BrokenResourceError, match="backend"):
        await Pipeline([("a", Pass)]).run(Dead(), Collect())


async def test_a_bug_in_a_stage_comes_out_as_it_was_raised() -> None:
    class Buggy(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await Pipeline([("a", Pass), ("buggy", Buggy)]).run(Listed(letters("a")), Collect())


async def test_an_error_of_the_sink_comes_out_as_it_was_raised() -> None:
    class Failing:
        async def run(self, receive: Receive) -> None:
            await receive.receive()
            raise ProxyError(Failure("no", status=429))

    with pytest.raises(ProxyError, match="no"):
        await Pipeline([("a", Pass)]).run(Endless(), Failing())


async def test_two_errors_at_once_stay_a_group() -> None:
    class Failing:
        real_time = False

        async def run(self, send: Send) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    class Buggy:
        async def run(self, receive: Receive) -> None:
            await trio.testing.wait_all_tasks_blocked()
            raise KeyError("sink")

    with pytest.raises(ExceptionGroup) as raised:
        await Pipeline().run(Failing(), Buggy())
    assert {type(error) for error in raised.value.exceptions} == {ValueError, KeyError}


async def test_a_failure_is_an_event_and_passes() -> None:
    events: list[Event] = [Failed(Failure("down")), TurnEnd("failed")]
    assert await Pipeline([("a", Pass)]).run(Listed(events), Collect()) == events


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
