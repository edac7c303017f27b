"""A run of text is taken at once: the same events and books as when each delta is fed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.config.settings import Settings
from pipeline.events import Event, RetryNotice, TextDelta, ToolCall
from pipeline.ledger import Ledger
from pipeline.segment import Stages
from pipeline.stage import NOTHING, Stage
from pipeline.turn import Tool, Turn
from tests.frame.test_laws import SETTINGS, TURNS, timed


def fed_each(stage: Stage) -> Stage:
    """The stage with every event fed to it: a class with a feed() of its own declares no more."""
    cls = type(stage)
    stage.__class__ = type(cls.__name__, (cls,), {"feed": cls.feed})
    return stage


def opened(chosen: Settings, turn: Turn, ledger: Ledger, *, together: bool) -> Stages:
    """The stages of the recipe; or, with every single event fed to every stage."""
    stages = assembly.recipe(chosen).pure_stages(turn, ledger)
    return Stages(stages if together else map(fed_each, stages))


@settings(max_examples=300)
@given(timed(), SETTINGS, TURNS, st.lists(st.integers(0, 25), max_size=4))
def test_what_is_not_fed_event_by_event_comes_out_the_same(
    events: list[Event], chosen: Settings, turn: Turn, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    results: list[tuple[list[object], Sequence[tuple[object, ...]]]] = []
    for together in (True, False):
        ledger = Ledger()
        stages = opened(chosen, turn, ledger, together=together)
        out: list[object] = []
        for start, end in pairwise(edges):
            if not stages.done:
                out += stages.take(events[start:end])
        out += stages.close()
        books = [
            (book.name, book.taken, book.given, book.made, book.folded, book.dropped, book.notes)
            for book in ledger
        ]
        results.append((out, books))
    assert results[0] == results[1]


class Counting(Stage):
    """Counts how often it is fed, and takes text together, or not."""

    def __init__(self, *, together: bool) -> None:
        super().__init__()
        self._together = together
        self.fed = 0

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        return text if self._together else None

    def feed(self, event: Event) -> Sequence[Event]:
        self.fed += 1
        return (event,)


TEXT = (TextDelta("a"), TextDelta("b"))
CALL = ToolCall("call_1", "look", "{}")


@pytest.mark.parametrize(
    ("burst", "together", "fed"),
    [
        (TEXT, True, 0),
        (TEXT, False, 2),
        ((*TEXT, CALL), True, 3),
        ((CALL,), True, 1),
    ],
)
def test_only_bursts_of_nothing_but_text_are_taken_together(
    burst: tuple[Event, ...], together: bool, fed: int
) -> None:
    stage = Counting(together=together)
    stages = Stages([stage])
    assert [*stages.take(burst), *stages.close()] == list(burst)
    assert (stage.fed, stage.ledger.taken, stage.ledger.given) == (fed, len(burst), len(burst))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_stage_that_takes_no_text_together_leaves_that_of_the_others(at: int) -> None:
    stages = [Counting(together=place != at) for place in range(3)]
    assert list(Stages(stages).take(TEXT)) == list(TEXT)
    assert [stage.fed for stage in stages] == [2 if place == at else 0 for place in range(3)]


def test_a_stage_may_answer_a_run_of_text_with_other_events() -> None:
    class Joins(Counting):
        feed = Counting.feed

        def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
            for event in text:
                self.fold(event, "joined")
            return self.make(TextDelta("".join(event.text for event in text)))

    joins, last = Joins(together=True), Counting(together=True)
    stages = Stages([joins, last])
    assert [*stages.take(TEXT), *stages.close()] == [TextDelta("ab")]
    assert (joins.fed, joins.ledger.taken, joins.ledger.given) == (0, 2, 1)
    assert (last.fed, last.ledger.taken, last.ledger.given) == (0, 1, 1)
    assert joins.ledger.difference == last.ledger.difference == 0


def test_a_stage_with_a_deadline_is_fed_so_that_it_can_be_woken_in_time() -> None:
    stage = Counting(together=True)
    stage.deadline = 5.0
    Stages([stage]).take([TextDelta("late", at=6.0)])
    assert stage.fed == 1


def test_a_stage_that_is_done_lets_nothing_pass() -> None:
    stage = Counting(together=True)
    stage.done = True
    assert list(Stages([stage]).take(TEXT)) == []


class AtMost(Stage):
    """Lets so many deltas pass, and is done then."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def feed(self, event: Event) -> Sequence[Event]:
        raise NotImplementedError

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        if len(text) <= self.most:
            self.most -= len(text)
            return text
        self.done = True
        for left in text[self.most :]:
            self.drop(left, "too many")
        return text[: self.most]


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("most", [2, 3])
def test_a_stage_may_be_done_with_a_run_of_text(behind: int, most: int) -> None:
    stages = Stages([AtMost(most), *[Counting(together=True) for _ in range(behind)]])
    text = [TextDelta(letter) for letter in "ab"]
    assert stages.take(text) == text
    assert stages.take(text) == text[: most - 2]
    assert stages.done


def test_events_that_a_stage_does_not_want_pass_it_by() -> None:
    class Picky(Counting):
        wants = frozenset({ToolCall})
        feed = Counting.feed

    stage = Picky(together=False)
    stages = Stages([stage])
    burst = (*TEXT, CALL)
    assert [*stages.take(burst), *stages.take(TEXT), *stages.close()] == [*burst, *TEXT]
    assert (stage.fed, stage.ledger.taken, stage.ledger.given) == (1, 5, 5)


@pytest.mark.parametrize("declared", ["wants", "feed_text"])
def test_a_subclass_with_a_feed_of_its_own_inherits_no_declaration_about_another(
    declared: str,
) -> None:
    class Declares(Counting):
        wants = frozenset[type]() if declared == "wants" else None
        feed = Counting.feed

        def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
            return text if declared == "feed_text" else None

    class Overrides(Declares):
        def feed(self, event: Event) -> Sequence[Event]:
            super().feed(event)
            return NOTHING

    assert list(Stages([Declares(together=True)]).take(TEXT)) == list(TEXT)
    assert list(Stages([Overrides(together=True)]).take(TEXT)) == []


@pytest.mark.parametrize(
    ("before", "after", "together"),
    [
        ((), ("Hello ", "world"), True),
        ((), ("a < b", "c"), True),
        ((), ("Look: <use_t", "ool>"), False),
        ((), ("<tool_call>",), False),
        (("<use_",), ("no tag",), False),
    ],
)
def test_text_is_searched_for_calls_all_the_same(
    before: tuple[str, ...], after: tuple[str, ...], together: bool
) -> None:
    stages = assembly.recipe(Settings()).pure_stages(Turn(tools=(Tool("look"),)))
    calls = next(stage for stage in stages if stage.ledger.name == "calls")
    for text in before:
        calls.feed(TextDelta(text))
    burst = [TextDelta(text) for text in after]
    assert calls.feed_text(burst) == (burst if together else None)


def test_after_a_retry_words_are_compared_again() -> None:
    recipe = assembly.recipe(Settings())
    burst = [TextDelta("Hel", "a"), TextDelta("lo", "a")]
    stages = opened(Settings(), Turn(), Ledger(), together=True)
    assert list(stages.take(burst)) == burst
    stages.take([RetryNotice()])
    again = stages.take([TextDelta("Hel", "b"), TextDelta("lo, you", "b")])
    assert list(again) == [TextDelta(", you", "a")]
    assert "retries" in recipe.names
