"""Stages that share a segment decide like stages that have a task each, and at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from pipeline import assembly
from pipeline.chain import Chain
from pipeline.config.settings import Settings
from pipeline.events import Event, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Send, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from tests.support.chain_parts import (
    Arriving,
    AsyncDouble,
    Endless,
    Hold,
    Pass,
    StopAfter,
    Waiting,
    everything,
    read,
    stalling,
    texts,
)

both_ways = pytest.mark.parametrize("fuse", [False, True])


class Quiet(SendingSource):
    """Says something and is silent for so long."""

    def __init__(self, seconds: float = 10.0, *words: str) -> None:
        self._seconds = seconds
        self._words = words or ("x",)

    async def run(self, send: Send) -> None:
        for word in self._words:
            await send.send((TextDelta(word, at=trio.current_time()),))
            await trio.sleep(self._seconds)


class Cut(Stage):
    """Is done a second after the first event, and says so."""

    def feed(self, event: Event) -> Sequence[Event]:
        self.deadline = event.at + 1.0
        return (event,)

    def wake(self, now: float) -> Sequence[Event]:
        self.done = True
        return self.make(TextDelta("!", at=now))


class Late(Stage):
    """Is due long after the end."""

    def feed(self, event: Event) -> Sequence[Event]:
        self.deadline = event.at + 100.0
        return (event,)


def slowly(
    seconds: float, got: list[tuple[float, str]]
) -> Callable[[Chain], Awaitable[list[Event]]]:
    """A reader that takes its time over every burst, and notes when each came."""

    async def read(chain: Chain) -> list[Event]:
        begun = trio.current_time()
        events: list[Event] = []
        async for burst in chain:
            got.append((round(trio.current_time() - begun, 3), texts(burst)))
            events += burst
            await trio.sleep(seconds)
        return events

    return read


def stalls(seconds: float) -> Callable[[Chain], Awaitable[list[Event]]]:
    """A reader that stops after its first burst for so long, and then reads to the end."""
    return partial(stalling, seconds=seconds)


@both_ways
async def test_a_deadline_is_kept_while_the_source_waits(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    got: list[tuple[float, str]] = []
    await read(Pipeline([("hold", Hold), ("b", Pass)]), Quiet(), slowly(0.0, got), fuse=fuse)
    assert got == [(1.0, "x")]


@both_ways
async def test_deadlines_are_kept_again_and_again(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    got: list[tuple[float, str]] = []
    source = Quiet(3.0, "a", "b", "c")
    await read(Pipeline([("hold", Hold)]), source, slowly(0.0, got), fuse=fuse)
    assert got == [(1.0, "a"), (4.0, "b"), (7.0, "c")]


@both_ways
async def test_a_stage_that_is_done_when_it_wakes_makes_a_waiting_source_leave(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source, ledger = Waiting(), Ledger()
    begun = trio.current_time()
    recipe = Pipeline([("a", Pass), ("cut", Cut), ("b", Pass)])
    assert texts(await recipe.run(source, Collect(), ledger=ledger, fuse=fuse)) == "x!"
    assert trio.current_time() - begun == pytest.approx(1.0)
    assert source.left_because is trio.Cancelled
    assert all(books.difference == 0 for books in ledger)


@both_ways
async def test_what_is_cut_off_stays_cut_off_however_slowly_the_client_reads(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source, got = Endless(), list[tuple[float, str]]()
    recipe = Pipeline([("stop", lambda: StopAfter(2))])
    await read(recipe, source, slowly(100.0, got), fuse=fuse)
    assert "".join(words for _, words in got) == "xx"
    assert source.left_because is trio.Cancelled


@both_ways
async def test_a_client_that_stalls_moves_no_decision(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The deadline passed while nobody read, so what came after it came too late."""
    source = Arriving((0.0, TextDelta("a")), (0.5, TextDelta("b")), (3.0, TextDelta("c")))
    begun = trio.current_time()
    out = await read(Pipeline([("cut", Cut)]), source, stalls(30.0), fuse=fuse)
    assert [(texts([event]), event.at - begun) for event in out] == [
        ("a", 0.0),
        ("b", 0.5),
        ("!", pytest.approx(1.5)),
    ]


@both_ways
async def test_an_end_is_told_at_once_though_a_deadline_was_set(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    begun = trio.current_time()
    await Pipeline([("late", Late)]).run(Quiet(1.0), Collect(), fuse=fuse)
    assert trio.current_time() - begun == pytest.approx(1.0)


@both_ways
async def test_what_the_stages_hold_comes_out_at_the_end(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    assert texts(await Pipeline([("hold", Hold)]).run(Quiet(0.5), Collect(), fuse=fuse)) == "x"


@both_ways
async def test_a_source_may_be_gone_before_the_deadline_is_set(fuse: bool) -> None:
    class Hasty(SendingSource):
        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x", at=trio.current_time()),))

    with trio.fail_after(20):
        for _ in range(50):  # trio shuffles tasks that are ready together
            out = await Pipeline([("late", Late)]).run(Hasty(), Collect(), fuse=fuse)
            assert texts(out) == "x"


@both_ways
async def test_stages_behind_one_that_awaits_keep_their_deadlines_too(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source = Waiting()
    recipe = Pipeline([("double", AsyncDouble), ("cut", Cut)])
    with trio.fail_after(10):
        out = await recipe.run(source, Collect(), fuse=fuse)
    assert texts(out) == "xx!"
    assert source.left_because is trio.Cancelled


@both_ways
async def test_a_mistake_of_the_source_is_the_only_error(fuse: bool) -> None:
    class Broken(SendingSource):
        async def run(self, send: Send) -> None:
            raise ValueError("a mistake")

    async def strict(chain: Chain) -> None:
        await everything(chain)
        raise AssertionError("the turn never ended")

    with pytest.raises(ValueError, match="a mistake"):
        await read(Pipeline([("a", Pass)]), Broken(), strict, fuse=fuse)


@both_ways
async def test_the_last_words_of_a_turn_are_sent_before_its_source_returns(fuse: bool) -> None:
    class Ending(SendingSource):
        done = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("bye"), TurnEnd()))
            self.done = True

    source = Ending()
    recipe = Pipeline([("a", Pass)], guard=lambda: StopAfter(2))
    assert texts(await recipe.run(source, Collect(), fuse=fuse)) == "bye"
    assert source.done


# -- clients that are slow -------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("stall", [0.1, 1.0, 30.0])
async def test_a_call_reaches_a_client_that_stalled_when_it_was_made(
    fuse: bool, stall: float, autojump_clock: trio.testing.MockClock
) -> None:
    call = ToolCall("call_1", "look", "{}")

    class Calling(SendingSource):
        async def run(self, send: Send) -> None:
            await send.send((TextDelta("Let me look.", at=trio.current_time()),))
            await trio.sleep(0.05)
            await send.send((attrs.evolve(call, at=trio.current_time()),))
            await trio.sleep(20)
            await send.send((TurnEnd(at=trio.current_time()),))

    recipe, turn = assembly.recipe(Settings()), Turn(tools=(Tool("look"),))
    out = await read(recipe, Calling(), stalls(stall), turn, fuse=fuse)
    assert [type(event) for event in out] == [TextDelta, ToolCall, TurnEnd]


@both_ways
async def test_a_send_that_is_cancelled_can_be_made_again(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Impatient(SendingSource):
        """Gives up each send after a second and tries again."""

        async def run(self, send: Send) -> None:
            for text in ("one ", "two <too", "lbox> three"):
                sent = False
                while not sent:
                    with trio.move_on_after(1.0):
                        await send.send((TextDelta(text, "m", at=trio.current_time()),))
                        sent = True
            await send.send((TurnEnd(at=trio.current_time()),))

    recipe = assembly.recipe(Settings())
    turn = Turn(tools=(Tool("look"),), stop=("never",))
    out = await read(recipe, Impatient(), stalls(30.0), turn, fuse=fuse)
    assert texts(out) == "one two <toolbox> three"
    assert isinstance(out[-1], TurnEnd)


@both_ways
async def test_the_end_is_told_though_its_source_is_made_to_leave(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Dropped(SendingSource):
        """Is cancelled right after its last words, while nobody reads."""

        async def run(self, send: Send) -> None:
            with trio.move_on_after(5.0):
                for word in "abc":
                    await send.send((TextDelta(word, at=trio.current_time()),))
                await send.send((TurnEnd(at=trio.current_time()),))

    out = await read(assembly.recipe(Settings()), Dropped(), stalls(60.0), fuse=fuse)
    assert "abc".startswith(texts(out))
    assert isinstance(out[-1], TurnEnd)


@both_ways
async def test_a_nearer_deadline_moves_the_alarm(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Nearer(Stage):
        """Is due after ten seconds, and once it has seen a second event, after a tenth of one."""

        def __init__(self) -> None:
            super().__init__()
            self._patience = 10.0

        def feed(self, event: Event) -> Sequence[Event]:
            self.deadline = event.at + self._patience
            self._patience = 0.1
            return (event,)

        def wake(self, now: float) -> Sequence[Event]:
            self.done = True
            return self.make(TextDelta("!", at=now))

    got: list[tuple[float, str]] = []
    source = Quiet(1.0, "a", "b", "c")
    await read(Pipeline([("nearer", Nearer)]), source, slowly(0.0, got), fuse=fuse)
    assert got[-1] == (1.1, "!")


@both_ways
async def test_what_is_there_is_received_without_waiting_once_or_not_at_all(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async def hasty(chain: Chain) -> tuple[str, int]:
        got, refused = "", 0
        while True:
            await trio.testing.wait_all_tasks_blocked()
            try:
                got += texts(chain.receive_nowait())
            except trio.WouldBlock:
                refused += 1
                await trio.sleep(0.6)
            except trio.EndOfChannel:
                return got, refused

    source = Quiet(1.0, *"abcd")
    got, refused = await read(Pipeline([("pass", Pass)]), source, hasty, fuse=fuse)
    assert got == "abcd"
    assert refused >= 4
