"""Law: however the stages are linked, and however slowly a client reads, they decide the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from math import inf
from typing import Any, Final

import attrs
import trio
import trio.testing
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.chain import Chain
from pipeline.config.settings import Settings
from pipeline.events import Event, TextDelta, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.segment import LATE
from pipeline.stage import AsyncStage, Outcome, ReceiveBursts, Send, Source, Stage
from pipeline.turn import Turn
from sources.replay import Listed
from tests.frame.test_laws import EVENTS, SETTINGS, TURNS
from tests.support.chain_parts import Arriving, read

GAPS: Final = (0.0, 0.0, 0.01, 0.3, 1.0, 4.0, 5.0, 12.0)
STALLS: Final = st.lists(st.sampled_from([0.0, 0.0, 0.3, 2.0, 7.0, 60.0]), min_size=1, max_size=5)
Books = list[tuple[object, ...]]


@frozen
class Run:
    """What came of a run."""

    events: Sequence[Event]
    books: Books
    whole: bool
    """Whether the run ended by itself: all events of the source were taken, and none too late."""


@st.composite
def stamped(draw: st.DrawFn) -> list[Event]:
    """Events at their times; most turns have one end, and nothing behind it."""
    events = draw(st.lists(EVENTS, max_size=20))
    if draw(st.integers(0, 3)):
        events = [e for e in events if not isinstance(e, TurnEnd)]
        events.append(TurnEnd("completed"))
    at = 0.0
    for place, event in enumerate(events):
        at += draw(st.sampled_from(GAPS))
        events[place] = attrs.evolve(event, at=at)
    return events


class SlowCopy(AsyncStage):
    """Sends on what it is given, each event on its own and some of them late."""

    def __init__(self, waits: Sequence[float]) -> None:
        super().__init__()
        self._waits = cycle(waits)

    async def run(self, receive: ReceiveBursts, send: Send) -> None:
        async for burst in receive:
            for event in burst:
                await trio.sleep(next(self._waits))
                await send.send((event,))


class Holds(Stage):
    """Holds text until a second after it began. It comes out with the time when it does."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Event] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, TextDelta):
            return [*self.wake(event.at), event]
        if not self._held:
            self.deadline = event.at + 1.0
        self._held.append(event)
        return ()

    def wake(self, now: float) -> Sequence[Event]:
        self.deadline = inf
        return [attrs.evolve(event, at=now) for event in self.close()]

    def close(self) -> Sequence[Event]:
        held, self._held = self._held, []
        return held


class Beats(Stage):
    """Says something every three seconds."""

    def feed(self, event: Event) -> Sequence[Event]:
        if self.deadline == inf:
            self.deadline = event.at + 3.0
        return (event,)

    def wake(self, now: float) -> Sequence[Event]:
        self.deadline = now + 3.0
        return self.make(TextDelta(".", at=now))


class EndsAfterSilence(Stage):
    """Is done after two seconds of silence."""

    def feed(self, event: Event) -> Sequence[Event]:
        self.deadline = event.at + 2.0
        return (event,)

    def wake(self, now: float) -> Sequence[Event]:
        self.done = True
        return self.make(TurnEnd("silence", at=now))


class EndsAtCall(Stage):
    """Is done with the first call, and forgets that it has a deadline."""

    def feed(self, event: Event) -> Sequence[Event]:
        self.deadline = event.at + 0.2
        self.done = isinstance(event, ToolCall)
        return (event,)

    def wake(self, now: float) -> Sequence[Event]:
        return self.make(TextDelta("!", at=now))


TIMED: Final[list[Callable[[], Stage]]] = [Holds, Beats, EndsAfterSilence, EndsAtCall]


def books_of(ledger: Ledger) -> Books:
    return [(b.name, b.taken, b.given, b.made, b.folded, b.dropped) for b in ledger]


def processed(recipe: Pipeline, events: Sequence[Event], turn: Turn) -> Run:
    """Without trio: each event alone, and time only from the stamps."""
    ledger = Ledger()
    left = iter(events)
    out = recipe.process(left, turn, ledger=ledger)
    whole = next(left, None) is None and not any(book.dropped[LATE] for book in ledger)
    return Run(out, books_of(ledger), whole)


def run(
    recipe: Pipeline,
    source: Source,
    turn: Turn,
    stalls: Sequence[float],
    *,
    fuse: bool,
    without: str = "",
) -> Run:
    """In virtual time, for a reader that stalls. The books are those of the other stages."""
    ledger = Ledger()

    async def stalling(chain: Chain) -> list[Event]:
        out: list[Event] = []
        waits = cycle(stalls)
        async for burst in chain:
            out += burst
            await trio.sleep(next(waits))
        return out

    async def main() -> list[Event]:
        return await read(recipe, source, stalling, turn, ledger=ledger, fuse=fuse)

    out = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ledger.delivered == len(out)
    assert all(book.difference == 0 for book in ledger)
    return Run(out, [book for book in books_of(ledger) if book[0] != without], whole=False)


def agree(expected: Run, *runs: Run) -> None:
    for other in runs:
        assert other.events == expected.events
        if expected.whole:
            assert other.books == expected.books


def split(events: Sequence[Event], cuts: Sequence[int]) -> Listed:
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    return Listed(*(events[start:end] for start, end in pairwise(edges)))


@settings(max_examples=200)
@given(stamped(), SETTINGS, TURNS, st.lists(st.integers(0, 20), max_size=4), STALLS)
def test_a_recorded_turn_is_the_same_fused_and_not_fused_and_without_trio(
    events: list[Event], chosen: Settings, turn: Turn, cuts: list[int], stalls: list[float]
) -> None:
    recipe = assembly.recipe(chosen)
    source = split(events, cuts)
    agree(
        processed(recipe, events, turn),
        *(run(recipe, source, turn, stalls, fuse=fuse) for fuse in (True, False)),
    )


@settings(max_examples=300)
@given(stamped(), SETTINGS, TURNS, STALLS)
def test_a_live_turn_is_decided_by_its_stamps_however_slowly_it_is_read(
    events: list[Event], chosen: Settings, turn: Turn, stalls: list[float]
) -> None:
    recipe = assembly.recipe(chosen)
    runs: list[Run] = []
    outcomes: list[Outcome | None] = []
    for fuse in (True, False):
        source = Arriving(*((event.at, event) for event in events))
        runs.append(run(recipe, source, turn, stalls, fuse=fuse))
        outcomes.append(source.outcome)
    agree(processed(recipe, events, turn), *runs)
    assert outcomes[0] == outcomes[1]


@settings(max_examples=300)
@given(st.data(), stamped(), SETTINGS, TURNS, STALLS, STALLS)
def test_a_stage_that_awaits_in_the_middle_changes_nothing(
    data: st.DataObject,
    events: list[Event],
    chosen: Settings,
    turn: Turn,
    waits: list[float],
    stalls: list[float],
) -> None:
    recipe = assembly.recipe(chosen)
    expected = processed(recipe, events, turn)
    place = data.draw(st.sampled_from(recipe.names))
    recipe = recipe.insert_before(place, "copy", lambda: SlowCopy(waits))
    sources: list[Callable[[], Any]] = [
        lambda: split(events, [5, 9]),
        lambda: Arriving(*((event.at, event) for event in events)),
    ]
    agree(
        expected,
        *(
            run(recipe, source(), turn, stalls, fuse=fuse, without="copy")
            for source in sources
            for fuse in (True, False)
        ),
    )


@settings(max_examples=300)
@given(stamped(), st.lists(st.sampled_from(TIMED), min_size=1, max_size=3), STALLS, STALLS)
def test_stages_with_deadlines_of_all_kinds_decide_alike(
    events: list[Event],
    stages: list[Callable[[], Stage]],
    waits: list[float],
    stalls: list[float],
) -> None:
    recipe = Pipeline([(str(number), stage) for number, stage in enumerate(stages)])
    expected = processed(recipe, events, Turn())
    awaiting = recipe.insert_before("0", "copy", lambda: SlowCopy(waits))
    awaits_last = recipe.insert_after(str(len(stages) - 1), "copy", lambda: SlowCopy(waits))
    agree(
        expected,
        *(
            run(variant, source, Turn(), stalls, fuse=fuse, without="copy")
            for variant in (recipe, awaiting, awaits_last)
            for fuse in (True, False)
            for source in (split(events, [3, 8]), Arriving(*((e.at, e) for e in events)))
        ),
    )
