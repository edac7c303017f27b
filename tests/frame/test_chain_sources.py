"""What a chain promises to its sources and its stages, and how it deals with odd ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import attrs
import pytest
import trio
import trio.testing

from pipeline import assembly
from pipeline.chain import Chain
from pipeline.config.settings import Settings
from pipeline.events import Event, TextDelta, ToolCall, TurnEnd, TurnStart
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import AsyncStage, ReceiveBursts, Send, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.replay import Listed
from tests.frame.test_chain_fused import both_ways, stalls
from tests.support.chain_parts import (
    Arriving,
    AsyncCopy,
    Pass,
    StopAfter,
    letters,
    read,
    texts,
)

LOOK = Turn(tools=(Tool("look"),))


def call(number: int) -> ToolCall:
    return ToolCall(f"call_{number}", "look", f'{{"n":{number}}}')


def call_ids(events: Sequence[Event]) -> list[str]:
    return [event.call_id for event in events if isinstance(event, ToolCall)]


@both_ways
@pytest.mark.parametrize("stall", [0.0, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("calls", [2, 12])
async def test_all_calls_made_in_time_reach_a_client_that_stalled_meanwhile(
    fuse: bool, stall: float, calls: int, autojump_clock: trio.testing.MockClock
) -> None:
    made = [(0.05 * number, call(number)) for number in range(1, calls + 1)]
    source = Arriving((0.0, TextDelta("Let me look.")), *made, (made[-1][0] + 20.0, TurnEnd()))
    out = await read(assembly.recipe(Settings()), source, stalls(stall), LOOK, fuse=fuse)
    assert call_ids(out) == [f"call_{number}" for number in range(1, calls + 1)]
    assert isinstance(out[-1], TurnEnd)


@both_ways
async def test_a_call_that_came_too_late_stays_cut_off_for_a_client_that_stalled(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    begin = (0.0, TurnStart("untold"))
    text = (0.0, TextDelta("Hm."))
    source = Arriving(begin, text, (0.05, call(1)), (0.9, call(2)), (1.0, TurnEnd()))
    out = await read(assembly.recipe(Settings()), source, stalls(30.0), LOOK, fuse=fuse)
    assert call_ids(out) == ["call_1"]


@both_ways
async def test_a_source_that_gives_up_a_send_leaves_the_deadline_as_it_was(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    begun = trio.current_time()

    class GivesUp(SendingSource):
        async def run(self, send: Send) -> None:
            await send.send((TextDelta("Hm.", at=begun),))
            await send.send((attrs.evolve(call(1), at=begun),))
            with trio.move_on_after(2.0):
                for _ in range(10):
                    await send.send((TextDelta("more", at=begun),))
            await trio.sleep_forever()

    recipe = assembly.recipe(Settings())
    out = await read(recipe, GivesUp(), stalls(30.0), LOOK, fuse=fuse)
    assert call_ids(out) == ["call_1"]
    assert out[-1] == TurnEnd("tool_calls", at=begun + 5.0)


@both_ways
async def test_a_stage_that_awaits_may_stop_before_its_input_ends(fuse: bool) -> None:
    class Two(AsyncStage):
        async def run(self, receive: ReceiveBursts, send: Send) -> None:
            for _ in range(2):
                await send.send(await receive.receive())

    ledger = Ledger()
    bursts = [[letter] for letter in letters("abc")]
    recipe = Pipeline([("a", Pass), ("two", Two), ("b", Pass)])
    assert texts(await recipe.run(Listed(*bursts), Collect(), ledger=ledger, fuse=fuse)) == "ab"
    assert all(books.difference == 0 and UNEXPLAINED not in books.dropped for books in ledger)


@both_ways
async def test_a_source_cannot_make_light_of_a_stages_mistake(fuse: bool) -> None:
    class Mistaken(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            raise KeyError("a mistake")

    class Careless(SendingSource):
        async def run(self, send: Send) -> None:
            try:
                await send.send((TextDelta("x"),))
            except Exception:  # noqa: BLE001
                return

    with pytest.raises(KeyError, match="a mistake"):
        await Pipeline([("mistaken", Mistaken)]).run(Careless(), Collect(), fuse=fuse)


@both_ways
async def test_a_source_that_never_waits_can_be_cancelled_though_nothing_comes_of_it(
    fuse: bool,
) -> None:
    class Drops(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return self.drop(event, "unwanted")

    class Flood(SendingSource):
        sent = 0

        async def run(self, send: Send) -> None:
            for burst in repeat((TextDelta("x"),), 100_000):
                await send.send(burst)
                self.sent += 1

    source = Flood()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                while source.sent < 10:
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(leave)
            await Pipeline([("drops", Drops)]).run(source, Collect(), fuse=fuse)
    assert source.sent < 1_000


@both_ways
async def test_a_source_that_lingers_after_the_end_delays_nobody(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Lingers(SendingSource):
        async def run(self, send: Send) -> None:
            await send.send((TextDelta("bye"), TurnEnd()))
            await trio.sleep(50)

    begun = trio.current_time()
    recipe = Pipeline([("a", Pass)], guard=lambda: StopAfter(2))
    assert texts(await recipe.run(Lingers(), Collect(), fuse=fuse)) == "bye"
    assert trio.current_time() == begun


@both_ways
async def test_what_a_stage_gave_is_in_its_books_though_the_next_one_wants_no_more(
    fuse: bool,
) -> None:
    ledger = Ledger()
    recipe = Pipeline([("copies", AsyncCopy), ("stop", lambda: StopAfter(2))])
    bursts = [[letter] for letter in letters("abc")]
    assert texts(await recipe.run(Listed(*bursts), Collect(), ledger=ledger, fuse=fuse)) == "ab"
    assert ledger["copies"].given == ledger["stop"].taken == 2
    assert all(books.difference == 0 and UNEXPLAINED not in books.dropped for books in ledger)


@both_ways
async def test_a_stage_that_wakes_again_and_again_fills_no_memory_for_a_client_that_stalls(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Beats(Stage):
        beats = 0

        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline = event.at + 1.0
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            Beats.beats += 1
            self.deadline = now + 1.0
            return self.make(TextDelta(".", at=now))

    async def leaves(chain: Chain) -> None:
        await chain.receive()
        await trio.sleep(1_000)

    source = Arriving((0.0, TextDelta("x")), (2_000.0, TurnEnd()))
    await read(Pipeline([("beats", Beats)]), source, leaves, fuse=fuse)
    assert Beats.beats == (0 if fuse else 1)


def test_a_stage_that_feeds_in_its_own_way_sees_all_text() -> None:
    recipe = assembly.recipe(Settings())
    dedup = dict(recipe)["dedup"]

    class Shouting(type(dedup())):  # type: ignore[misc]
        def feed(self, event: Event) -> Sequence[Event]:
            if isinstance(event, TextDelta):
                event = attrs.evolve(event, text=event.text.upper())
            return super().feed(event)  # type: ignore[no-any-return]

    out = recipe.replace("dedup", Shouting).process([TextDelta("hello"), TurnEnd()])
    assert texts(out) == "HELLO"
