"""What a client reads of an answer that the backend began again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    TurnEnd,
)
from pipeline.turn import Tool, Turn
from stages.reconcile_retries import ReconcileRetries
from tests.support.stage_parts import END, call, failure_code, through


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["Hello par", None, "Hello par", "tial"], "Hello partial"),
        (["Hel", "lo", None, "H", "ello", " you"], "Hello you"),
        (["Hello", None, "Hello you"], "Hello you"),
        (["Hello", None, "Hello", None, "Hello you"], "Hello you"),
        (["Hello", None, "He", None, "Hello you"], "Hello you"),
        (["Hello", None, "Hello you", None, "Hello you too"], "Hello you too"),
        ([None, "Hello"], "Hello"),
        (["aa", None, "aa", "aa"], "aaaa"),
    ],
)
def test_a_retried_answer_is_read_once(pieces: list[str | None], text: str) -> None:
    events = [RetryNotice() if piece is None else TextDelta(piece) for piece in pieces]
    out = through(ReconcileRetries, *events, ResponseEnd(), END)
    assert text_of(out) == text
    assert failure_code(out) is None
    assert out[-1] == END


@pytest.mark.parametrize(
    "pieces",
    [
        ["Hello", None, "Help"],
        ["Hello", None, "Hell", "x"],
        ["Hello", None],
        ["Hello", None, "Hel"],
        ["a", None, "b"],
    ],
)
def test_a_second_answer_that_departs_fails_the_turn(pieces: list[str | None]) -> None:
    events = [RetryNotice() if piece is None else TextDelta(piece) for piece in pieces]
    out = through(ReconcileRetries, *events, ResponseEnd(), END)
    assert failure_code(out) == "answer_changed_on_retry"
    assert out[-1] == TurnEnd("failed")
    assert text_of(out) == pieces[0]


def test_calls_made_before_a_retry_are_forwarded_once() -> None:
    again = ToolCall("call_other_id", "a", "{}")
    out = through(ReconcileRetries, call("a"), RetryNotice(), again, call("b"), ResponseEnd(), END)
    assert [event.name for event in out if isinstance(event, ToolCall)] == ["a", "b"]


@pytest.mark.parametrize("second", [call("b"), call("a", arguments='{"x":1}')])
def test_another_call_after_a_retry_fails_the_turn(second: ToolCall) -> None:
    out = through(ReconcileRetries, call("a"), RetryNotice(), second, END)
    assert failure_code(out) == "answer_changed_on_retry"


def test_a_call_where_text_was_expected_fails_the_turn() -> None:
    out = through(ReconcileRetries, TextDelta("Hi"), RetryNotice(), call("a"), END)
    assert failure_code(out) == "answer_changed_on_retry"
    assert not any(isinstance(event, ToolCall) for event in out)


def test_a_turn_that_ends_before_its_second_answer_caught_up_fails() -> None:
    out = through(ReconcileRetries, TextDelta("Hello"), RetryNotice(), TextDelta("Hel"), END)
    assert failure_code(out) == "answer_changed_on_retry"


def test_a_block_that_a_retry_tells_under_another_id_is_one_call() -> None:
    block = "Hm. <use_tool><name>s</name><q>hello</q></use_tool>"
    turn = Turn(tools=(Tool("s"),))
    for cut in range(len(block)):
        events: list[Event] = [
            TextDelta(block[:cut] or "H", "m1"),
            RetryNotice(),
            TextDelta(block[:30], "m2"),
            TextDelta(block[30:], "m2"),
            END,
        ]
        out = recipe(Settings()).process(events, turn)
        assert [e.arguments for e in out if isinstance(e, ToolCall)] == ['{"q":"hello"}']
        assert text_of(out) == "Hm. "


def test_reasoning_that_departs_is_left_out_and_the_answer_goes_on() -> None:
    out = through(
        ReconcileRetries,
        ReasoningDelta("so "),
        RetryNotice(),
        ReasoningDelta("hm"),
        TextDelta("42"),
        ResponseEnd(),
        END,
    )
    assert [event.text for event in out if isinstance(event, ReasoningDelta)] == ["so "]
    assert text_of(out) == "42"


def test_a_sealed_item_is_sent_once() -> None:
    sealed = ReasoningItem("rs_1", (), "gAAA")
    out = through(ReconcileRetries, sealed, RetryNotice(), sealed, ResponseEnd(), END)
    assert out.count(sealed) == 1


def test_a_failure_after_a_retry_is_that_failure() -> None:
    failed = Failed(Failure("down", code="upstream_error"))
    out = through(ReconcileRetries, TextDelta("Hi"), RetryNotice(), failed, TurnEnd("failed"))
    assert out == [TextDelta("Hi"), failed, TurnEnd("failed")]


def test_a_later_response_may_say_the_same_again() -> None:
    out = through(ReconcileRetries, TextDelta("a"), ResponseEnd(), RetryNotice(), TextDelta("a"))
    assert text_of(out) == "aa"
