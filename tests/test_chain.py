"""The recipe as tasks: channels, ends, cuts and failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pipeline.chain import Pipeline
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, ResponseEnd, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.stage import Outcome, Receive, Send, Stage
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


@pytest.mark.parametrize("fuse", [False, True])
async def test_tasks_and_plain_processing_agree(fuse: bool) -> None:
    recipe = Pipeline([("a", Pass), ("loud", Shout), ("hold", Hold), ("b", Pass)])
    events = letters("hello")
    collected = await recipe.run(Listed(events[:2], events[2:]), Collect(), fuse=fuse)
    assert collected == recipe.process(events)
    assert texts(collected) == "HELLO"


async def test_an_empty_recipe_is_a_pipe() -> None:
    assert texts(await Pipeline().run(Listed(letters("ab")), Collect())) == "ab"


@pytest.mark.parametrize("fuse", [False, True])
async def test_a_stage_that_is_done_makes_the_source_leave(fuse: bool) -> None:
    source = Endless()
    recipe = Pipeline([("a", Pass), ("stop", lambda: StopAfter(3)), ("b", Pass)])
    assert texts(await recipe.run(source, Collect(), fuse=fuse)) == "xxx"
    assert source.left_because in (trio.BrokenResourceError, trio.Cancelled)


@pytest.mark.parametrize("fuse", [False, True])
async def test_a_source_that_waits_leaves_too_when_a_stage_is_done(fuse: bool) -> None:
    source, ledger = Waiting(), Ledger()
    recipe = Pipeline([("a", Pass), ("b", Pass), ("stop", lambda: StopAfter(1)), ("c", Pass)])
    with trio.fail_after(30):
        assert texts(await recipe.run(source, Collect(), ledger=ledger, fuse=fuse)) == "x"
    # Where they share a task, its own send tells it.
    assert source.left_because is (trio.BrokenResourceError if fuse else trio.Cancelled)
    assert [(books.given, dict(books.dropped)) for books in ledger] == [(1, {})] * 4


async def test_a_source_that_waits_leaves_too_when_the_sink_has_enough(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class One:
        async def run(self, receive: Receive) -> Burst:
            return await receive.receive()

    source = Waiting()
    with trio.fail_after(30):
        await Pipeline([("a", Pass), ("double", AsyncDouble)]).run(source, One())
    assert source.left_because is trio.Cancelled


async def test_a_sink_that_has_enough_makes_the_source_leave() -> None:
    class One:
        async def run(self, receive: Receive) -> Burst:
            return await receive.receive()

    source = Endless()
    assert len(await Pipeline([("a", Pass)]).run(source, One())) == 1
    assert source.left_because in (trio.BrokenResourceError, trio.Cancelled)


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


@pytest.mark.parametrize("_", range(50))  # in whatever order the tasks run
async def test_a_client_that_leaves_cancels_every_task(_: int) -> None:
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


CUTS: dict[str, tuple[list[Event], Outcome | None]] = {
    "with its response": (
        [ToolCall("a", "f", "{}"), ResponseEnd(at=2.0), TurnEnd(at=3.0)],
        Outcome(("a",)),
    ),
    "by a silence": ([ToolCall("a", "f", "{}"), TurnEnd(at=3.0)], Outcome(("a",), 3.0)),
    "after another response": (
        [ResponseEnd(at=1.0), ToolCall("a", "f", "{}"), TurnEnd(at=3.0)],
        Outcome(("a",), 3.0),
    ),
    "for lack of room": ([ToolCall("a", "f", "{}"), TurnEnd(calls_truncated=True)], None),
}


@pytest.mark.parametrize("how", CUTS)
async def test_a_source_is_told_how_its_run_ended(how: str) -> None:
    events, outcome = CUTS[how]
    told: list[Outcome | None] = []

    class Settled(Listed):
        def settle(self, outcome: Outcome | None) -> None:
            told.append(outcome)

    await Pipeline().run(Settled(events), Collect())
    assert told == [outcome]
