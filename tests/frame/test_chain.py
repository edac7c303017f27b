"""The recipe as a chain: segments, ends, cuts and failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from pipeline.chain import Chain
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, ResponseEnd, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Incoming, Outcome, Send, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Turn
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
    everything,
    letters,
    read,
    texts,
)

both_ways = pytest.mark.parametrize("fuse", [False, True])


async def one_burst(chain: Chain) -> Burst:
    return await chain.receive()


@both_ways
async def test_a_chain_and_plain_processing_agree(fuse: bool) -> None:
    recipe = Pipeline([("a", Pass), ("loud", Shout), ("hold", Hold), ("b", Pass)])
    events = letters("hello")
    collected = await recipe.run(Listed(events[:2], events[2:]), Collect(), fuse=fuse)
    assert collected == recipe.process(events)
    assert texts(collected) == "HELLO"


@both_ways
async def test_an_empty_recipe_is_a_pipe(fuse: bool) -> None:
    assert texts(await Pipeline().run(Listed(letters("ab")), Collect(), fuse=fuse)) == "ab"


@both_ways
async def test_a_stage_that_is_done_makes_the_source_leave(fuse: bool) -> None:
    source = Endless()
    recipe = Pipeline([("a", Pass), ("stop", lambda: StopAfter(3)), ("b", Pass)])
    assert texts(await recipe.run(source, Collect(), fuse=fuse)) == "xxx"
    assert source.left_because is trio.Cancelled


@both_ways
async def test_a_source_that_waits_leaves_too_when_a_stage_is_done(fuse: bool) -> None:
    source, ledger = Waiting(), Ledger()
    recipe = Pipeline([("a", Pass), ("b", Pass), ("stop", lambda: StopAfter(1)), ("c", Pass)])
    with trio.fail_after(30):
        assert texts(await recipe.run(source, Collect(), ledger=ledger, fuse=fuse)) == "x"
    assert source.left_because is trio.Cancelled
    assert [(books.given, dict(books.dropped)) for books in ledger] == [(1, {})] * 4


@both_ways
async def test_a_source_that_waits_leaves_too_when_the_reader_has_enough(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source = Waiting()
    recipe = Pipeline([("a", Pass), ("double", AsyncDouble)])
    with trio.fail_after(30):
        assert texts(await read(recipe, source, one_burst, fuse=fuse)) == "xx"
    assert source.left_because is trio.Cancelled


@both_ways
async def test_a_reader_that_has_enough_makes_the_source_leave(fuse: bool) -> None:
    source = Endless()
    assert len(await read(Pipeline([("a", Pass)]), source, one_burst, fuse=fuse)) == 1
    assert source.left_because is trio.Cancelled


@both_ways
async def test_a_source_is_asked_for_nothing_more_once_a_stage_is_done(fuse: bool) -> None:
    """However slowly the client takes what there is: the source is let go when it is left."""
    source = Endless()

    async def slow(chain: Chain) -> str:
        await trio.testing.wait_all_tasks_blocked()
        read = texts(await chain.receive())
        await trio.testing.wait_all_tasks_blocked()
        return read + texts(await everything(chain))

    recipe = Pipeline([("a", Pass), ("stop", lambda: StopAfter(2)), ("b", Pass)])
    assert await read(recipe, source, slow, fuse=fuse) == "xx"
    assert source.sent in ([2] if fuse else [2, 3])  # a stage of its own task reads one ahead


@both_ways
@pytest.mark.parametrize("_", range(25))  # in whatever order the tasks run
async def test_a_client_that_leaves_cancels_every_task(_: int, fuse: bool) -> None:
    source = Endless()
    with trio.CancelScope() as scope:

        async def leave(chain: Chain) -> None:
            await chain.receive()
            scope.cancel()
            await trio.sleep_forever()

        await read(Pipeline([("a", Pass)]), source, leave, fuse=fuse)
    assert scope.cancelled_caught
    assert source.left_because is trio.Cancelled


@both_ways
async def test_the_source_may_clean_up_before_the_run_ends(fuse: bool) -> None:
    cleaned: list[str] = []

    class Tidy(Endless):
        async def run(self, send: Send) -> None:
            try:
                await super().run(send)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                    cleaned.append("interrupt")

    await Pipeline([("stop", lambda: StopAfter(1))]).run(Tidy(), Collect(), fuse=fuse)
    assert cleaned == ["interrupt"]


@both_ways
async def test_a_dead_backend_is_not_taken_for_a_client_that_left(fuse: bool) -> None:
    class Dead(SendingSource):
        real_time = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x"),))
            raise trio.BrokenResourceError("the backend's pipe broke")

    with pytest.raises(trio.BrokenResourceError, match="backend"):
        await Pipeline([("a", Pass)]).run(Dead(), Collect(), fuse=fuse)


@both_ways
async def test_a_bug_in_a_stage_comes_out_as_it_was_raised(fuse: bool) -> None:
    class Buggy(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            raise ZeroDivisionError("a bug")

    recipe = Pipeline([("a", Pass), ("buggy", Buggy), ("b", Pass)])
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await recipe.run(Listed(letters("a")), Collect(), fuse=fuse)


@both_ways
async def test_an_error_of_the_sink_comes_out_as_it_was_raised(fuse: bool) -> None:
    class Failing(Collect):
        def feed(self, burst: object) -> bytes:
            raise ProxyError(Failure("no", status=429))

    source = Endless()
    with pytest.raises(ProxyError, match="no"):
        await Pipeline([("a", Pass)]).run(source, Failing(), fuse=fuse)
    assert source.left_because is trio.Cancelled


@both_ways
async def test_two_errors_at_once_stay_a_group(fuse: bool) -> None:
    class Failing(SendingSource):
        async def run(self, send: Send) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    async def buggy(chain: Chain) -> None:
        await trio.testing.wait_all_tasks_blocked()
        raise KeyError("sink")

    with pytest.raises(ExceptionGroup) as raised:
        await read(Pipeline(), Failing(), buggy, fuse=fuse)
    assert {type(error) for error in raised.value.exceptions} == {ValueError, KeyError}


@both_ways
async def test_a_source_that_fails_while_it_is_left_is_not_kept_quiet(fuse: bool) -> None:
    class Failing(Endless):
        async def run(self, send: Send) -> None:
            try:
                await super().run(send)
            finally:
                raise ValueError("while cleaning up")

    with pytest.raises(ValueError, match="while cleaning up"):
        await Pipeline([("stop", lambda: StopAfter(1))]).run(Failing(), Collect(), fuse=fuse)


@both_ways
async def test_a_failure_is_an_event_and_passes(fuse: bool) -> None:
    events: list[Event] = [Failed(Failure("down")), TurnEnd("failed")]
    assert await Pipeline([("a", Pass)]).run(Listed(events), Collect(), fuse=fuse) == events


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


class Told(Incoming):
    """Notes what it is told of the answer's end."""

    def __init__(self, incoming: Incoming) -> None:
        self.receive = incoming.receive  # type: ignore[method-assign]
        self.receive_nowait = incoming.receive_nowait  # type: ignore[method-assign]
        self.told: list[tuple[str, Outcome | None]] = []

    def finishing(self, outcome: Outcome | None) -> None:
        self.told.append(("finishing", outcome))

    def delivered(self, outcome: Outcome | None) -> None:
        self.told.append(("delivered", outcome))


@both_ways
@pytest.mark.parametrize("how", CUTS)
async def test_a_source_is_told_how_its_run_ended(how: str, fuse: bool) -> None:
    events, outcome = CUTS[how]
    opened: list[Told] = []

    class Telling(Listed):
        @asynccontextmanager
        async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
            async with super().open(turn) as incoming:
                opened.append(Told(incoming))
                yield opened[0]

    await Pipeline([("a", Pass)]).run(Telling(events), Collect(), fuse=fuse)
    assert opened[0].told == [("finishing", outcome), ("delivered", outcome)]
