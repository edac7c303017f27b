"""The rules of the loop for the request that writes an answer: it receives, encodes and writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.chain import Chain, respond
from pipeline.errors import Failure
from pipeline.events import Burst, Event, Failed, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Incoming, Outcome, Source
from pipeline.turn import Turn
from sinks.chat import ChatOptions, ChatSse
from sinks.collect import Collect
from sources.replay import Listed
from tests.support.chain_parts import (
    Arriving,
    AsyncCopy,
    Hold,
    Pass,
    Waiting,
    everything,
    letters,
    read,
    texts,
)

both_ways = pytest.mark.parametrize("fuse", [False, True])


class Told(Incoming):
    """Bursts that are there; notes what is said of the answer, and if others ran in between."""

    def __init__(self, bursts: Sequence[Burst], log: list[Any]) -> None:
        self._bursts = list(bursts)
        self._log = log

    def receive_nowait(self) -> Burst:
        if not self._bursts:
            raise trio.EndOfChannel
        return self._bursts.pop(0)

    def finishing(self, outcome: Outcome | None) -> None:
        self._log.append(("finishing", outcome))

    def delivered(self, outcome: Outcome | None) -> None:
        self._log.append(("delivered", outcome))


def telling(bursts: Sequence[Burst], log: list[Any]) -> Source:
    class Telling:
        real_time = False

        @asynccontextmanager
        async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
            yield Told(bursts, log)
            log.append("left")

    return Telling()


class Writes(Collect):
    """Every burst is written."""

    def feed(self, burst: Any) -> bytes:
        super().feed(burst)
        return b"data"


@both_ways
async def test_8_delivered_follows_the_last_write_and_nobody_runs_in_between(fuse: bool) -> None:
    log: list[Any] = []

    async def other() -> None:
        log.append("another task")

    async def write(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        log.append("written")
        nursery.start_soon(other)

    bursts: list[Burst] = [(ToolCall("call_1", "f", "{}"),), (TurnEnd(at=3.0),)]
    async with trio.open_nursery() as nursery:
        await Pipeline([("a", Pass)]).run(telling(bursts, log), Writes(), fuse=fuse, write=write)
    outcome = Outcome(("call_1",), 3.0)
    log.remove("another task")  # it ran after the first write
    assert log[:4] == ["written", ("finishing", outcome), "written", ("delivered", outcome)]
    assert sorted(log[4:]) == ["another task", "left"]


@both_ways
async def test_8_a_turn_whose_answer_was_not_written_is_not_delivered(fuse: bool) -> None:
    log: list[Any] = []

    async def write(data: bytes) -> None:
        raise OSError("the client left")

    source = telling([(TextDelta("a"), TurnEnd())], log)
    with pytest.raises(OSError, match="the client left"):
        await Pipeline([("a", Pass)]).run(source, Writes(), fuse=fuse, write=write)
    assert [entry[0] for entry in log] == ["finishing"]


@both_ways
async def test_8_a_shutdown_is_a_failure_that_passes_the_stages(fuse: bool) -> None:
    source = Waiting()
    recipe = Pipeline([("a", Pass)])
    async with recipe.open(source, fuse=fuse) as chain:
        assert texts(await chain.receive()) == "x"
        chain.fail(Failure("shutting down", status=503))
        assert [type(event) for event in await chain.receive()] == [Failed, TurnEnd]
    assert source.left_because is trio.Cancelled


@both_ways
@pytest.mark.parametrize("window", [0.0, 0.5, 1.5, 9.0])
async def test_14_who_waits_a_moment_for_the_first_burst_and_reads_on_elsewhere_loses_nothing(
    fuse: bool, window: float, autojump_clock: trio.testing.MockClock
) -> None:
    """As a handler does, whose response goes on after it has returned."""
    sink = ChatSse(ChatOptions("r", 0, "m"))
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        written.append(data)

    source = Arriving((1.0, TextDelta("a")), (2.0, TextDelta("b")), (3.0, TurnEnd()))
    async with AsyncExitStack() as stack:
        recipe = Pipeline([("a", Pass), ("copy", AsyncCopy)])
        chain = await stack.enter_async_context(recipe.open(source, fuse=fuse))
        first = b""
        with trio.move_on_after(window):
            first = sink.feed(await chain.receive())
        assert bool(first) == (window > 1.0)
        await respond(chain, sink, write, first=first)
    whole = ChatSse(ChatOptions("r", 0, "m"))
    expected = whole.feed([TextDelta("a"), TextDelta("b"), TurnEnd()])
    assert b"".join(written) == expected


async def test_a_keepalive_is_written_into_every_silence_and_into_no_other_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    words = [(at, TextDelta(word)) for at, word in ((3.0, "a"), (4.0, "b"), (6.5, "c"))]
    source, log = Arriving(*words, (20.0, TurnEnd())), list[tuple[float, bytes]]()
    begun = trio.current_time()

    class Pings(Writes):
        def keepalive(self) -> bytes:
            return b"ping"

    async def write(data: bytes) -> None:
        log.append((round(trio.current_time() - begun, 3), data))

    async def written(chain: Chain) -> None:
        await respond(chain, Pings(), write, silence=5.0)

    await read(Pipeline([("a", Pass)]), source, written)
    data, ping = b"data", b"ping"
    assert log == [
        (3.0, data),
        (4.0, data),
        (6.5, data),
        (11.5, ping),
        (16.5, ping),
        (20.0, data),
    ]


Reader = Callable[[Chain], Awaitable[list[Event]]]


def impatient(seconds: float) -> Reader:
    """A reader that gives up every receive after so long, and tries again."""

    async def reader(chain: Chain) -> list[Event]:
        out: list[Event] = []
        for _ in range(10_000):
            with trio.move_on_after(seconds):
                try:
                    out += await chain.receive()
                except trio.EndOfChannel:
                    return out
        raise AssertionError("the turn never ended")

    return reader


@both_ways
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.3])
async def test_6_receiving_may_be_cancelled_at_any_time_and_nothing_is_lost(
    fuse: bool, seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    words = [(0.1 * number, TextDelta(f"{number} ")) for number in range(40)]
    recipe = Pipeline([("a", Pass), ("copy", AsyncCopy), ("hold", Hold), ("b", Pass)])
    source, ledger = Arriving(*words), Ledger()
    out = await read(recipe, source, impatient(seconds), ledger=ledger, fuse=fuse)
    assert texts(out) == "".join(f"{number} " for number in range(40))
    assert all(book.difference == 0 and not book.dropped for book in ledger)


@both_ways
async def test_6_a_receive_that_is_cancelled_before_it_began_takes_nothing(fuse: bool) -> None:
    source = Listed(*([letter] for letter in letters("abcdef")))

    async def cancelled(chain: Chain) -> tuple[str, int]:
        out, times = "", 0
        for _ in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    out += texts(await chain.receive())
                except trio.EndOfChannel:
                    break
            times += scope.cancelled_caught
            await trio.testing.wait_all_tasks_blocked()
        return out + texts(await everything(chain)), times

    out, times = await read(Pipeline([("a", Pass)]), source, cancelled, fuse=fuse)
    assert out == "abcdef"
    assert times > 4
