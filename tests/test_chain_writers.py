"""What a run promises to whoever writes into it, and of whoever does: sources and stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import attrs
import pytest
import trio
import trio.testing

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.chain import Pipeline
from pipeline.events import Event, TextDelta, ToolCall, TurnEnd, TurnStart
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.links import MOST_UNREAD
from pipeline.stage import AsyncStage, Receive, Send, Stage
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.replay import Listed
from tests.support.chain_parts import Hold, Pass, StopAfter, letters, texts
from tests.test_chain_sharing import FUSED, Stalls


class Told:
    """Sends bursts at their times."""

    real_time = True

    def __init__(self, *bursts: tuple[float, Event]) -> None:
        self._bursts = bursts

    async def run(self, send: Send) -> None:
        begun = trio.current_time()
        for after, event in self._bursts:
            await trio.sleep_until(begun + after)
            await send.send((attrs.evolve(event, at=begun + after),))


def call(number: int) -> ToolCall:
    return ToolCall(f"call_{number}", "look", f'{{"n":{number}}}')


@pytest.mark.parametrize("fuse", FUSED)
@pytest.mark.parametrize("stall", [0.0, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("calls", [2, 12])
async def test_all_calls_made_in_time_reach_a_client_that_stalled_meanwhile(
    fuse: bool, stall: float, calls: int, autojump_clock: trio.testing.MockClock
) -> None:
    made = [(0.05 * number, call(number)) for number in range(1, calls + 1)]
    source = Told((0.0, TextDelta("Let me look.")), *made, (made[-1][0] + 20.0, TurnEnd()))
    turn = Turn(tools=(Tool("look"),))
    out = await assembly.recipe(Settings()).run(source, Stalls(stall), turn, fuse=fuse)
    got = [event.call_id for event in out if isinstance(event, ToolCall)]
    assert got == [f"call_{number}" for number in range(1, calls + 1)]
    assert isinstance(out[-1], TurnEnd)


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_call_that_came_too_late_stays_cut_off_for_a_client_that_stalled(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    begin = (0.0, TurnStart("untold"))
    source = Told(begin, (0.0, TextDelta("Hm.")), (0.05, call(1)), (0.9, call(2)), (1.0, TurnEnd()))
    turn = Turn(tools=(Tool("look"),))
    out = await assembly.recipe(Settings()).run(source, Stalls(30.0), turn, fuse=fuse)
    assert [event.call_id for event in out if isinstance(event, ToolCall)] == ["call_1"]


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_writer_that_gives_up_leaves_the_deadline_as_it_was(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class GivesUp:
        real_time = True
        left_at = 0.0

        async def run(self, send: Send) -> None:
            begun = trio.current_time()
            await send.send((TextDelta("Hm.", at=begun),))
            await send.send((attrs.evolve(call(1), at=begun),))
            with trio.move_on_after(5.0):
                await send.send((TextDelta("never taken", at=begun),))
                await send.send((TextDelta("nor this", at=begun),))
            try:
                await trio.sleep_forever()
            finally:
                self.left_at = trio.current_time() - begun

    source, turn = GivesUp(), Turn(tools=(Tool("look"),))
    out = await assembly.recipe(Settings()).run(source, Stalls(30.0), turn, fuse=fuse)
    assert [event.call_id for event in out if isinstance(event, ToolCall)] == ["call_1"]
    assert source.left_at < 6.0, "the cut waited for the client"


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_stage_may_close_what_it_writes_to(fuse: bool) -> None:
    class Closes(AsyncStage):
        async def run(self, receive: Receive, send: Send) -> None:
            async for burst in receive:
                await send.send(burst)
            send.close()

    recipe = Pipeline([("closes", Closes), ("hold", Hold)])
    assert texts(await recipe.run(Listed(letters("xy")), Collect(), fuse=fuse)) == "xy"


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_source_cannot_make_light_of_a_stages_mistake(fuse: bool) -> None:
    class Mistaken(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            raise KeyError("a mistake")

    class Careless:
        real_time = True

        async def run(self, send: Send) -> None:
            try:
                await send.send((TextDelta("x"),))
            except Exception:  # noqa: BLE001
                return

    with pytest.raises(KeyError, match="a mistake"):
        await Pipeline([("mistaken", Mistaken)]).run(Careless(), Collect(), fuse=fuse)


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_source_that_never_waits_can_be_cancelled_though_nothing_comes_of_it(
    fuse: bool,
) -> None:
    class Drops(Stage):
        def feed(self, event: Event) -> Sequence[Event]:
            return self.drop(event, "unwanted")

    class Flood:
        real_time = True
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


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_source_that_lingers_after_the_end_delays_nobody(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Lingers:
        real_time = True

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("bye"), TurnEnd()))
            await trio.sleep(50)

    begun = trio.current_time()
    recipe = Pipeline([("a", Pass)], guard=lambda: StopAfter(2))
    assert texts(await recipe.run(Lingers(), Collect(), fuse=fuse)) == "bye"
    assert trio.current_time() == begun


@pytest.mark.parametrize("fuse", FUSED)
async def test_what_a_stage_gave_is_in_its_books_though_the_next_one_wants_no_more(
    fuse: bool,
) -> None:
    class Copies(AsyncStage):
        async def run(self, receive: Receive, send: Send) -> None:
            async for burst in receive:
                await send.send(burst)

    ledger = Ledger()
    recipe = Pipeline([("copies", Copies), ("stop", lambda: StopAfter(2))])
    bursts = [[letter] for letter in letters("abc")]
    assert texts(await recipe.run(Listed(*bursts), Collect(), ledger=ledger, fuse=fuse)) == "ab"
    assert ledger["copies"].given == ledger["stop"].taken == 2
    assert all(books.difference == 0 and UNEXPLAINED not in books.dropped for books in ledger)


@pytest.mark.parametrize("fuse", FUSED)
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

    class Leaves(Stalls):
        async def run(self, receive: Receive) -> list[Event]:
            await receive.receive()
            await trio.sleep(1_000)
            return []

    source = Told((0.0, TextDelta("x")), (2_000.0, TurnEnd()))
    await Pipeline([("beats", Beats)]).run(source, Leaves(0), fuse=fuse)
    assert 1 < Beats.beats <= MOST_UNREAD + 1


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
