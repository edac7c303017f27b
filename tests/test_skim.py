"""Text that passes at a glance: the same events and the same books as when each delta is fed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import Event, RetryNotice, TextDelta, ToolCall
from pipeline.lane import Lane
from pipeline.ledger import Ledger
from pipeline.stage import Stage
from pipeline.turn import Tool, Turn
from tests.test_laws import SETTINGS, TURNS, timed


def opened(chosen: Settings, turn: Turn, ledger: Ledger, *, skims: bool) -> Lane:
    """The recipe as a lane; without skimming, every delta is fed to every stage."""
    stages = [
        stage for stage in assembly.recipe(chosen).open(turn, ledger) if isinstance(stage, Stage)
    ]
    if not skims:
        for stage in stages:
            stage.skim = lambda text: False  # type: ignore[method-assign]
    return Lane(stages)


@settings(max_examples=300)
@given(timed(), SETTINGS, TURNS, st.lists(st.integers(0, 25), max_size=4))
def test_skimming_changes_nothing(
    events: list[Event], chosen: Settings, turn: Turn, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    results: list[tuple[list[Event], Sequence[tuple[object, ...]]]] = []
    for skims in (True, False):
        ledger = Ledger()
        lane = opened(chosen, turn, ledger, skims=skims)
        out: list[Event] = []
        for start, end in pairwise(edges):
            if not lane.done:
                out += lane.take(events[start:end])
        out += lane.close()
        books = [
            (book.name, book.taken, book.given, book.made, book.folded, book.dropped, book.notes)
            for book in ledger
        ]
        results.append((out, books))
    assert results[0] == results[1]


class Counting(Stage):
    """Counts how often it is fed."""

    def __init__(self, *, skims: bool) -> None:
        super().__init__()
        self._skims = skims
        self.fed = 0

    def skim(self, text: Sequence[TextDelta]) -> bool:
        return self._skims

    def feed(self, event: Event) -> Sequence[Event]:
        self.fed += 1
        return (event,)


TEXT = (TextDelta("a"), TextDelta("b"))
CALL = ToolCall("call_1", "look", "{}")


@pytest.mark.parametrize(
    ("burst", "skims", "fed"),
    [
        (TEXT, True, 0),
        (TEXT, False, 2),
        ((*TEXT, CALL), True, 3),
        ((CALL,), True, 1),
    ],
)
def test_only_bursts_of_nothing_but_text_are_skimmed(
    burst: tuple[Event, ...], skims: bool, fed: int
) -> None:
    stage = Counting(skims=skims)
    lane = Lane([stage])
    assert [*lane.take(burst), *lane.close()] == list(burst)
    assert (stage.fed, stage.ledger.taken, stage.ledger.given) == (fed, len(burst), len(burst))


def test_a_stage_with_a_deadline_is_fed_so_that_it_can_be_woken_in_time() -> None:
    stage = Counting(skims=True)
    stage.deadline = 5.0
    Lane([stage]).take([TextDelta("late", at=6.0)])
    assert stage.fed == 1


def test_a_stage_that_is_done_lets_nothing_pass() -> None:
    stage = Counting(skims=True)
    stage.done = True
    assert list(Lane([stage]).take(TEXT)) == []


@pytest.mark.parametrize(
    ("before", "after", "skimmed"),
    [
        ((), ("Hello ", "world"), True),
        ((), ("a < b", "c"), True),
        ((), ("Look: <use_t", "ool>"), False),
        ((), ("<tool_call>",), False),
        (("<use_",), ("no tag",), False),
    ],
)
def test_text_is_searched_for_calls_all_the_same(
    before: tuple[str, ...], after: tuple[str, ...], skimmed: bool
) -> None:
    stages = assembly.recipe(Settings()).open(Turn(tools=(Tool("look"),)))
    calls = next(stage for stage in stages if stage.ledger.name == "calls")
    assert isinstance(calls, Stage)
    for text in before:
        calls.feed(TextDelta(text))
    assert calls.skim([TextDelta(text) for text in after]) is skimmed


def test_after_a_retry_words_are_compared_again() -> None:
    recipe = assembly.recipe(Settings())
    burst = [TextDelta("Hel", "a"), TextDelta("lo", "a")]
    lane = opened(Settings(), Turn(), Ledger(), skims=True)
    assert list(lane.take(burst)) == burst
    lane.take([RetryNotice()])
    again = lane.take([TextDelta("Hel", "b"), TextDelta("lo, you", "b")])
    assert list(again) == [TextDelta(", you", "a")]
    assert "retries" in recipe.names
