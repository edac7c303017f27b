"""The rules of the loop, as far as the frame keeps them; those of a live turn are beside this."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from pipeline.chain import Chain
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, TextDelta, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.segment import UNREAD
from pipeline.stage import AsyncStage, Incoming, ReceiveBursts, Send, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Turn
from sinks.chat import ChatOptions, ChatSse
from sinks.collect import Collect
from sources.replay import Listed
from tests.support.chain_parts import (
    Arriving,
    AsyncCopy,
    Hold,
    Pass,
    StopAfter,
    Waiting,
    everything,
    letters,
    read,
    stalling,
    texts,
)

both_ways = pytest.mark.parametrize("fuse", [False, True])


class Cut(Stage):
    """Ends the turn after a second of silence."""

    def feed(self, event: Event) -> Sequence[Event]:
        self.deadline = event.at + 1.0
        return (event,)

    def wake(self, now: float) -> Sequence[Event]:
        self.done = True
        return self.make(TurnEnd("silence", at=now))


def said(events: Sequence[Event], begun: float) -> list[tuple[float, str]]:
    """What was said and when, and how it ended."""
    return [
        (round(event.at - begun, 3), event.text if isinstance(event, TextDelta) else "end")
        for event in events
    ]


# -- time ------------------------------------------------------------------------------------------


@both_ways
async def test_2_what_is_there_already_is_taken_before_a_deadline_is_looked_at(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source = Arriving((0.0, TextDelta("a")), (0.9, TextDelta("b")), (1.8, TextDelta("c")))
    begun = trio.current_time()
    reader = partial(stalling, seconds=60.0)
    out = await read(Pipeline([("cut", Cut)]), source, reader, fuse=fuse)
    assert said(out, begun) == [(0.0, "a"), (0.9, "b"), (1.8, "c")]


@both_ways
async def test_3_time_is_an_event_behind_those_that_came_before_it(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A stage that awaits holds up time as it holds up events."""

    class Slow(AsyncStage):
        async def run(self, receive: ReceiveBursts, send: Send) -> None:
            async for burst in receive:
                await trio.sleep(5)
                await send.send(burst)

    source = Arriving((0.0, TextDelta("a")), (0.5, TextDelta("b")), (60.0, TurnEnd()))
    recipe = Pipeline([("before", Pass), ("slow", Slow), ("between", Pass), ("cut", Cut)])
    begun = trio.current_time()
    out = await read(recipe, source, everything, fuse=fuse)
    assert said(out, begun) == [(0.0, "a"), (0.5, "b"), (1.5, "end")]


@both_ways
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_3_the_earliest_deadline_of_the_whole_chain_is_waited_for(
    fuse: bool, place: int, autojump_clock: trio.testing.MockClock
) -> None:
    stages: list[Callable[[], Stage | AsyncStage]] = [Pass, AsyncCopy, Pass]
    stages.insert(place, Cut)
    stages.append(Hold)  # its deadline is a second after the first text
    recipe = Pipeline([(str(number), stage) for number, stage in enumerate(stages)])
    source = Arriving((0.0, TextDelta("a")), (0.5, TextDelta("b")), (60.0, TextDelta("c")))
    begun = trio.current_time()
    came: list[tuple[float, str]] = []

    async def note(chain: Chain) -> None:
        came.extend(
            [(round(trio.current_time() - begun, 3), texts(burst)) async for burst in chain]
        )

    await read(recipe, source, note, fuse=fuse)
    assert came == [(1.0, "ab"), (1.5, "")]


@both_ways
@pytest.mark.parametrize("stall", [0.0, 1.2, 30.0])
async def test_3_live_stalled_and_replayed_a_turn_is_decided_alike(
    fuse: bool, stall: float, autojump_clock: trio.testing.MockClock
) -> None:
    events = [(0.0, TextDelta("a")), (0.5, TextDelta("b")), (3.0, TextDelta("c"))]
    recipe = Pipeline([("a", Pass), ("cut", Cut)])
    begun = trio.current_time()
    reader = partial(stalling, seconds=stall)
    live = said(await read(recipe, Arriving(*events), reader, fuse=fuse), begun)
    recorded = [attrs.evolve(event, at=at) for at, event in events]
    assert live == said(recipe.process(recorded), 0.0)
    assert live == [(0.0, "a"), (0.5, "b"), (1.5, "end")]


# -- fairness --------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("recipe", [Pipeline(), Pipeline([("a", Pass), ("b", Pass)])])
async def test_9_others_run_between_bursts_that_come_without_waiting(
    recipe: Pipeline, fuse: bool
) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        source = Listed(*([letter] for letter in letters("x" * 500)))
        assert len(await read(recipe, source, everything, fuse=fuse)) == 500
        nursery.cancel_scope.cancel()
    assert turns > 490


@both_ways
async def test_9_a_time_limit_ends_a_source_that_never_makes_anybody_wait(fuse: bool) -> None:
    class Flood:
        real_time = True

        @asynccontextmanager
        async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
            yield _Flood()

    class _Flood(Incoming):
        def receive_nowait(self) -> Burst:
            return (TextDelta("x"),)

    class Drops(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return self.drop(event, "unwanted")

    with trio.move_on_after(0.05) as limit:
        await Pipeline([("drops", Drops)]).run(Flood(), Collect(), fuse=fuse)
    assert limit.cancelled_caught


# -- books and errors ------------------------------------------------------------------------------


@both_ways
async def test_11_what_a_reader_that_leaves_did_not_get_is_in_the_books_as_unread(
    fuse: bool,
) -> None:
    """Of four letters one was received; the others are held, on their way, or still to come."""

    class HoldsVowels(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return () if isinstance(event, TextDelta) and event.text in "aeiou" else (event,)

    async def one_burst(chain: Chain) -> None:
        assert texts(await chain.receive()) == "x"
        await trio.testing.wait_all_tasks_blocked()

    ledger = Ledger()
    recipe = Pipeline([("vowels", HoldsVowels), ("b", Pass)])
    source = Listed(*([letter] for letter in letters("axyz")))
    await read(recipe, source, one_burst, ledger=ledger, fuse=fuse)
    assert ledger.delivered == ledger["b"].given == 1
    # In tasks of their own, each stage has read one more burst and waits with it.
    assert [(book.taken, book.given, book.dropped) for book in ledger] == (
        [(2, 1, {UNREAD: 1}), (1, 1, {})] if fuse else [(4, 2, {UNREAD: 2}), (2, 1, {UNREAD: 1})]
    )


@both_ways
async def test_11_what_an_awaiting_stage_sends_counts_when_it_was_received(fuse: bool) -> None:
    class GivesUp(AsyncStage):
        """Sends one burst, and gives up on another that is not read."""

        async def run(self, receive: ReceiveBursts, send: Send) -> None:
            async for burst in receive:
                with trio.CancelScope() as self.sending:
                    await send.send(burst)

    stage = GivesUp()
    ledger = Ledger()

    async def one_of_two(chain: Chain) -> str:
        read = texts(await chain.receive())
        await trio.testing.wait_all_tasks_blocked()
        stage.sending.cancel()
        await trio.testing.wait_all_tasks_blocked()
        return read + texts(await everything(chain))

    source = Listed(*([letter] for letter in letters("abc")))
    recipe = Pipeline([("gives up", lambda: stage)])
    assert await read(recipe, source, one_of_two, ledger=ledger, fuse=fuse) == "ac"
    book = ledger["gives up"]
    assert (book.taken, book.given, book.dropped.total()) == (3, 2, 1)
    assert ledger.delivered == 2


class Buggy(Stage):
    """Raises when it is fed for the second time."""

    fed = 0

    def feed(self, event: Event) -> Sequence[Event]:
        self.fed += 1
        if self.fed == 2:
            raise ZeroDivisionError("a bug")
        return (event,)


@both_ways
async def test_12_a_bug_leaves_the_loop_bare_and_nothing_is_received_after_it(fuse: bool) -> None:
    async def goes_on(chain: Chain) -> None:
        assert texts(await chain.receive()) == "a"
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await chain.receive()
        raise KeyError(texts(await everything(chain)))

    source = Listed(*([letter] for letter in letters("abc")))
    with pytest.raises((KeyError, ZeroDivisionError)) as raised:
        await read(Pipeline([("buggy", Buggy)]), source, goes_on, fuse=fuse)
    assert raised.type is ZeroDivisionError or raised.value.args == ("",)


@both_ways
async def test_12_a_failure_is_a_status_before_the_head_and_a_part_of_the_stream_after_it(
    fuse: bool,
) -> None:
    down = Failure("down", status=502)
    failed: list[Event] = [Failed(down), TurnEnd("failed")]
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        written.append(data)

    def sink() -> ChatSse:
        return ChatSse(ChatOptions("r", 0, "m"))

    recipe = Pipeline([("a", Pass)])
    with pytest.raises(ProxyError, match="down") as raised:
        await recipe.run(Listed(failed), sink(), fuse=fuse, write=write)
    assert (raised.value.failure.status, written) == (502, [])
    failure = await recipe.run(Listed(letters("a"), failed), sink(), fuse=fuse, write=write)
    assert failure == down
    assert b'"message":"down"' in written[-1]
    assert written[-1].endswith(b"data: [DONE]\n\n")


async def test_13_a_stage_that_is_done_ends_everything_upstream_while_its_reader_reads_on() -> None:
    left: list[str] = []

    class Notes(AsyncStage):
        async def run(self, receive: ReceiveBursts, send: Send) -> None:
            try:
                async for burst in receive:
                    await send.send(burst)
            finally:
                left.append("left")

    async def reads_on(chain: Chain) -> list[str]:
        await chain.receive()
        await trio.testing.wait_all_tasks_blocked()
        return [*left]

    recipe = Pipeline([("one", Notes), ("two", Notes), ("stop", lambda: StopAfter(1)), ("c", Pass)])
    with trio.fail_after(10):
        assert await read(recipe, Waiting(), reads_on, fuse=False) == ["left", "left"]


@both_ways
async def test_13_a_broken_resource_is_the_backends_as_nothing_in_a_chain_is_ever_broken(
    fuse: bool,
) -> None:
    """Not even for a source or a stage that notes how it was made to leave."""
    raised: list[type[BaseException]] = []

    class Notes(AsyncStage):
        async def run(self, receive: ReceiveBursts, send: Send) -> None:
            try:
                async for burst in receive:
                    await send.send(burst)
                    await send.send(burst)
            except BaseException as error:
                raised.append(type(error))
                raise

    class Sends(SendingSource):
        async def run(self, send: Send) -> None:
            try:
                while True:
                    await send.send((TextDelta("x", at=trio.current_time()),))
            except BaseException as error:
                raised.append(type(error))
                raise

    recipe = Pipeline([("a", Pass), ("notes", Notes), ("stop", lambda: StopAfter(3))])
    assert texts(await recipe.run(Sends(), Collect(), fuse=fuse)) == "xxx"
    assert raised == [trio.Cancelled, trio.Cancelled]
