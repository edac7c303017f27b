"""Stages that share the task of what writes to them: the same as when each has its own."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
import trio.testing

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.chain import Pipeline
from pipeline.events import Event, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.stage import Receive, Send, Stage
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from tests.support.chain_parts import AsyncDouble, Hold, Pass, StopAfter, Waiting, texts

FUSED = [False, True]


class Quiet:
    """Says something and is silent for so long."""

    real_time = True

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


class Slow:
    """A sink that takes its time over every burst."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.got: list[tuple[float, str]] = []

    async def run(self, receive: Receive) -> None:
        begun = trio.current_time()
        async for burst in receive:
            self.got.append((round(trio.current_time() - begun, 3), texts(burst)))
            await trio.sleep(self._seconds)


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_deadline_is_kept_while_the_source_waits(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    sink = Slow(0.0)
    await Pipeline([("hold", Hold), ("b", Pass)]).run(Quiet(), sink, fuse=fuse)
    assert sink.got == [(1.0, "x")]


@pytest.mark.parametrize("fuse", FUSED)
async def test_deadlines_are_kept_again_and_again(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    sink = Slow(0.0)
    await Pipeline([("hold", Hold)]).run(Quiet(3.0, "a", "b", "c"), sink, fuse=fuse)
    assert sink.got == [(1.0, "a"), (4.0, "b"), (7.0, "c")]


@pytest.mark.parametrize("fuse", FUSED)
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


@pytest.mark.parametrize("fuse", FUSED)
async def test_the_source_is_cut_off_though_the_client_reads_nothing(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Endless:
        real_time = True
        left_at = 0.0

        async def run(self, send: Send) -> None:
            try:
                while True:
                    await send.send((TextDelta("x", at=trio.current_time()),))
            finally:
                self.left_at = trio.current_time()

    source, sink = Endless(), Slow(100.0)
    begun = trio.current_time()
    await Pipeline([("stop", lambda: StopAfter(2))]).run(source, sink, fuse=fuse)
    assert source.left_at == begun
    assert "".join(words for _, words in sink.got) == "xx"


@pytest.mark.parametrize("fuse", FUSED)
async def test_an_end_is_told_at_once_though_an_alarm_was_set(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    begun = trio.current_time()
    await Pipeline([("late", Late)]).run(Quiet(1.0), Collect(), fuse=fuse)
    assert trio.current_time() - begun == pytest.approx(1.0)


@pytest.mark.parametrize("fuse", FUSED)
async def test_what_the_stages_hold_comes_out_at_the_end(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    assert texts(await Pipeline([("hold", Hold)]).run(Quiet(0.5), Collect(), fuse=fuse)) == "x"


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_source_may_be_gone_before_the_alarm_is_set(fuse: bool) -> None:
    class Hasty:
        real_time = True

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("x", at=trio.current_time()),))

    with trio.fail_after(20):
        for _ in range(50):  # trio shuffles tasks that are ready together
            out = await Pipeline([("late", Late)]).run(Hasty(), Collect(), fuse=fuse)
            assert texts(out) == "x"


@pytest.mark.parametrize("fuse", FUSED)
async def test_stages_behind_one_that_awaits_keep_their_deadlines_too(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source = Waiting()
    recipe = Pipeline([("double", AsyncDouble), ("cut", Cut)])
    with trio.fail_after(10):
        out = await recipe.run(source, Collect(), fuse=fuse)
    assert texts(out) == "xx!"
    assert source.left_because is trio.Cancelled


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_mistake_of_the_source_is_the_only_error(fuse: bool) -> None:
    class Broken:
        real_time = True

        async def run(self, send: Send) -> None:
            raise ValueError("a mistake")

    class Strict:
        async def run(self, receive: Receive) -> None:
            async for _ in receive:
                pass
            raise AssertionError("the turn never ended")

    with pytest.raises(ValueError, match="a mistake"):
        await Pipeline([("a", Pass)]).run(Broken(), Strict(), fuse=fuse)


@pytest.mark.parametrize("fuse", FUSED)
async def test_the_last_words_of_a_turn_are_sent_before_its_source_returns(fuse: bool) -> None:
    class Ending:
        real_time = True
        done = False

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("bye"), TurnEnd()))
            self.done = True

    source = Ending()
    recipe = Pipeline([("a", Pass)], guard=lambda: StopAfter(2))
    assert texts(await recipe.run(source, Collect(), fuse=fuse)) == "bye"
    assert source.done


# -- clients that are slow -------------------------------------------------------------------------


class Stalls:
    """A sink that stops after its first burst for so long, and then reads to the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def run(self, receive: Receive) -> list[Event]:
        got: list[Event] = []
        async for burst in receive:
            stalls = not got
            got += burst
            if stalls:
                await trio.sleep(self._seconds)
        return got


@pytest.mark.parametrize("fuse", FUSED)
@pytest.mark.parametrize("stall", [0.1, 1.0, 30.0])
async def test_a_call_reaches_a_client_that_stalled_when_it_was_made(
    fuse: bool, stall: float, autojump_clock: trio.testing.MockClock
) -> None:
    call = ToolCall("call_1", "look", "{}")

    class Calling:
        real_time = True

        async def run(self, send: Send) -> None:
            await send.send((TextDelta("Let me look.", at=trio.current_time()),))
            await trio.sleep(0.05)
            await send.send((attrs.evolve(call, at=trio.current_time()),))
            await trio.sleep(20)
            await send.send((TurnEnd(at=trio.current_time()),))

    turn = Turn(tools=(Tool("look"),))
    out = await assembly.recipe(Settings()).run(Calling(), Stalls(stall), turn, fuse=fuse)
    assert [type(event) for event in out] == [TextDelta, ToolCall, TurnEnd]


@pytest.mark.parametrize("fuse", FUSED)
async def test_a_send_that_is_cancelled_can_be_made_again(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Impatient:
        """Gives up each send after a second and tries again."""

        real_time = True

        async def run(self, send: Send) -> None:
            for text in ("one ", "two <too", "lbox> three"):
                sent = False
                while not sent:
                    with trio.move_on_after(1.0):
                        await send.send((TextDelta(text, "m", at=trio.current_time()),))
                        sent = True
            await send.send((TurnEnd(at=trio.current_time()),))

    turn = Turn(tools=(Tool("look"),), stop=("never",))
    out = await assembly.recipe(Settings()).run(Impatient(), Stalls(30.0), turn, fuse=fuse)
    assert texts(out) == "one two <toolbox> three"
    assert isinstance(out[-1], TurnEnd)


@pytest.mark.parametrize("fuse", FUSED)
async def test_the_end_is_told_though_its_source_is_made_to_leave(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    class Dropped:
        """Is cancelled right after its last words, while nobody reads."""

        real_time = True

        async def run(self, send: Send) -> None:
            with trio.move_on_after(5.0):
                await send.send((TextDelta("a", at=trio.current_time()),))
                await send.send((TextDelta("b", at=trio.current_time()),))
                await send.send((TextDelta("c"), TurnEnd(at=trio.current_time())))

    out = await assembly.recipe(Settings()).run(Dropped(), Stalls(60.0), fuse=fuse)
    assert texts(out)[:2] == "ab"
    assert isinstance(out[-1], TurnEnd)


@pytest.mark.parametrize("fuse", FUSED)
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

    sink = Slow(0.0)
    await Pipeline([("nearer", Nearer)]).run(Quiet(1.0, "a", "b", "c"), sink, fuse=fuse)
    assert sink.got[-1] == (1.1, "!")


class Hasty:
    """Sends without waiting whenever it can, and notes when it could not."""

    real_time = True

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def run(self, send: Send) -> None:
        for word in "abcd":
            burst = (TextDelta(word, at=trio.current_time()),)
            if not send.ready:
                with pytest.raises(trio.WouldBlock):
                    send.send_nowait(burst)
                self.refused.append(word)
                await send.send(burst)
            else:
                send.send_nowait(burst)
            await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("fuse", FUSED)
async def test_what_is_sent_without_waiting_is_taken_once_or_not_at_all(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source, sink = Hasty(), Slow(10.0)
    await Pipeline((("pass", Pass),)).run(source, sink, fuse=fuse)
    assert "".join(words for _, words in sink.got) == "abcd"
    assert source.refused  # the first is being read, the next waits
