"""Stop sequences: tables of what passes, and laws over arbitrary splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.errors import Failure
from pipeline.events import (
    CallProgress,
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    TurnEnd,
    Usage,
)
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.recipe import Pipeline
from pipeline.turn import Tool, Turn
from stages.stop_at_sequences import StopAtSequences

END = TurnEnd("completed")
STOP = TurnEnd("stop")


def through(stop: Sequence[str], *events: Event, ledger: Ledger | None = None) -> list[Event]:
    recipe = Pipeline([("stop", StopAtSequences)])
    return recipe.process(events, Turn(stop=tuple(stop)), ledger=ledger)


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def said(stop: Sequence[str], *texts: str) -> tuple[str, str]:
    """What passes of a text, and the reason of its end."""
    *events, end = through(stop, *map(TextDelta, texts), END)
    assert isinstance(end, TurnEnd)
    return text_of(events), end.reason


@pytest.mark.parametrize(
    ("stop", "texts", "passes"),
    [
        (["STOP"], ["Hello STOP you"], "Hello "),
        (["STOP"], ["Hello ST", "OP you"], "Hello "),
        (["STOP"], ["Hello S", "T", "O", "P"], "Hello "),
        (["STOP"], ["STOP"], ""),
        (["STOP"], ["Hello", "STOP", "more"], "Hello"),
        (["\n"], ["a\nb"], "a"),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb"),
        (["aab"], ["aaa", "ab"], "aa"),
        (["abab"], ["aba", "cabab"], "abac"),
        (["x", "STOP"], ["a STOP x"], "a "),
        (["STOP", "x"], ["a x STOP"], "a "),
        (["a", "a"], ["bca"], "bc"),
        (["🌍"], ["Hello 🌍"], "Hello "),
        ([".*"], ["a.*b"], "a"),
        # Where two overlap, the one that begins first counts, whichever is whole first.
        (["abcd", "bc"], ["xabc", "d"], "x"),
        (["abcd", "bc"], ["xabc", "e"], "xa"),
        (["abcd", "bc"], ["xabc"], "xa"),
        (["ab", "abc"], ["xabc"], "x"),
    ],
)
def test_the_text_ends_before_the_first_sequence(
    stop: list[str], texts: list[str], passes: str
) -> None:
    assert said(stop, *texts) == (passes, "stop")


@pytest.mark.parametrize(
    ("stop", "texts"),
    [
        ([], ["Hello STOP"]),
        (["STOP"], ["Hello S", "TO"]),
        (["STOP"], ["STO", "STO", "ST P"]),
        (["STOP"], ["stop"]),
        (["aab"], ["aa", "aa"]),
        (["STOP"], []),
    ],
)
def test_a_text_without_a_sequence_passes_whole(stop: list[str], texts: list[str]) -> None:
    assert said(stop, *texts) == ("".join(texts), "completed")


def test_text_is_held_only_while_it_may_begin_a_sequence() -> None:
    stage = StopAtSequences()
    stage.begin(Turn(stop=("STOP",)))
    fed = ["Hello", " S", "T", "A", "RT", "S"]
    assert [text_of(stage.feed(TextDelta(text))) for text in fed] == [
        "Hello",
        " ",
        "",
        "STA",
        "RT",
        "",
    ]
    assert text_of(stage.close()) == "S"


def test_text_that_cannot_begin_a_sequence_is_the_very_event() -> None:
    stage = StopAtSequences()
    stage.begin(Turn(stop=("STOP",)))
    event = TextDelta("Hello")
    assert stage.feed(event)[0] is event


def test_the_turn_ends_there_and_nothing_later_is_read() -> None:
    stage = StopAtSequences()
    stage.begin(Turn(stop=("STOP",)))
    out = stage.feed(TextDelta("a STOP b", "msg_1", at=2.0))
    assert list(out) == [TextDelta("a ", "msg_1", at=2.0), TurnEnd("stop", at=2.0)]
    assert stage.done


def test_without_sequences_every_event_is_passed_as_it_is() -> None:
    events: list[Event] = [TextDelta("STOP"), ReasoningDelta("x"), Usage(1, 2, 3), END]
    assert through([], *events) == events


CALL = ToolCall("call_a", "a", "{}")


@pytest.mark.parametrize(
    "event",
    [
        CALL,
        Usage(1, 2, 3),
        ReasoningDelta("OP"),
        ReasoningItem("rs_1"),
        ResponseEnd(),
        Failed(Failure("down")),
        END,
    ],
)
def test_held_text_leaves_before_any_other_event(event: Event) -> None:
    end: list[Event] = [] if event is END else [END]
    out = through(["STOP"], TextDelta("Hello ST"), event, *end)
    assert out == [TextDelta("Hello "), TextDelta("ST"), event, *end]


def test_news_of_a_call_on_its_way_does_not_part_a_text() -> None:
    out = through(["STOP"], TextDelta("a ST"), CallProgress(), TextDelta("OP"), END)
    assert out == [TextDelta("a "), CallProgress(), STOP]


@pytest.mark.parametrize(
    "between", [TextDelta("", "msg_2"), TextDelta("OP", "msg_2"), CALL, ReasoningDelta("hm")]
)
def test_a_sequence_does_not_span_two_messages_or_what_stands_between(between: Event) -> None:
    events = [TextDelta("ST", "msg_1"), between, TextDelta("OP", "msg_2"), END]
    out = through(["STOP"], *events)
    assert text_of(out).startswith("ST")
    assert out[-1] == END


def test_after_a_call_the_search_begins_anew() -> None:
    events: list[Event] = [TextDelta("aa"), CALL, TextDelta("ab"), END]
    assert through(["aab"], *events) == events


def test_calls_and_usage_from_before_stand() -> None:
    kept: list[Event] = [TextDelta("Hm. "), CALL, Usage(1, 2, 3)]
    out = through(["STOP"], *kept, TextDelta("STOP"), ToolCall("call_b", "b", "{}", 1), END)
    assert out == [*kept, STOP]


def test_reasoning_is_not_searched() -> None:
    out = through(["STOP"], ReasoningDelta("STOP"), TextDelta("42"), END)
    assert out == [ReasoningDelta("STOP"), TextDelta("42"), END]


def test_a_sequence_inside_a_tools_block_is_part_of_the_call() -> None:
    block = "Hm. <use_tool><name>s</name><q>a STOP b</q></use_tool> Then STOP. More."
    turn = Turn(tools=(Tool("s"),), stop=("STOP",))
    out = assembly.recipe(Settings()).process([TextDelta(block), END], turn)
    assert [event.arguments for event in out if isinstance(event, ToolCall)] == ['{"q":"a STOP b"}']
    assert text_of(out) == "Hm. "
    assert isinstance(out[-1], TurnEnd)


def test_a_stop_before_a_call_leaves_the_call_unmade() -> None:
    turn = Turn(tools=(Tool("a"),), stop=("STOP",))
    out = assembly.recipe(Settings()).process([TextDelta("a STOP"), CALL, END], turn)
    assert out == [TextDelta("a "), STOP]


def test_a_long_beginning_passes_as_far_as_it_has_proved_to_be_none() -> None:
    sequence = "a" * 999 + "b"
    text = "a" * 20_000
    stage = StopAtSequences()
    stage.begin(Turn(stop=(sequence,)))
    passed = "".join(text_of(stage.feed(TextDelta(character))) for character in text)
    assert len(passed) == 20_000 - 999
    assert text_of(stage.close()) == "a" * 999


# -- laws ----------------------------------------------------------------------------------------

TEXTS = st.text("abc", max_size=40)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def split(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXTS, STOPS, CUTS)
@example("xabcd", ["abcd", "bc"], [4])
def test_what_passes_is_what_stands_before_the_earliest_sequence(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    places = [text.find(stop) for stop in stops if stop in text]
    expected = (text[: min(places)], "stop") if places else (text, "completed")
    assert said(stops, *split(text, cuts)) == expected


@given(TEXTS, STOPS, CUTS)
def test_the_books_balance(text: str, stops: list[str], cuts: list[int]) -> None:
    ledger = Ledger()
    events = [TextDelta(piece, "m") for piece in split(text, cuts)]
    through(stops, *events, Usage(1, 2, 3), END, ledger=ledger)
    assert ledger["stop"].difference == 0
    assert UNEXPLAINED not in ledger["stop"].dropped


@given(TEXTS, STOPS, CUTS)
def test_no_more_is_held_than_may_begin_a_sequence(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stage = StopAtSequences()
    stage.begin(Turn(stop=tuple(stops)))
    fed = passed = ""
    for piece in split(text, cuts):
        fed += piece
        passed += text_of(stage.feed(TextDelta(piece)))
        if stage.done:
            break
        held = fed[len(passed) :]
        assert not held or any(stop.startswith(held[: len(stop) - 1]) for stop in stops)
        assert len(held) < max(map(len, stops))
