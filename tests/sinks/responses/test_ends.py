"""How answers of the Responses API end: well, early, in failure, or after a long silence."""

from __future__ import annotations

import pytest

from pipeline.errors import Failure, ProxyError
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    TextDelta,
    TurnEnd,
)
from sinks.responses import ResponsesSse
from tests.support.responses_automaton import check_stream, parse_stream
from tests.support.responses_turns import (
    CALL,
    DOWN,
    END,
    USAGE,
    body,
    line,
    options,
    stream,
    text_item,
)

# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (TurnEnd("completed"), "completed", None),
        (TurnEnd("tool_calls"), "completed", None),
        (TurnEnd("something new"), "completed", None),
        (TurnEnd("max_output_tokens"), "incomplete", "max_output_tokens"),
        (TurnEnd("length"), "incomplete", "max_output_tokens"),
        (TurnEnd("content_filter"), "incomplete", "content_filter"),
    ],
)
def test_the_end_of_a_turn_is_a_status(end: TurnEnd, status: str, reason: str | None) -> None:
    last = stream(TextDelta("a"), end)[-1]
    assert last["type"] == f"response.{status}"
    assert last["response"]["output"][0]["status"] == status
    details = last["response"]["incomplete_details"]
    assert details == (None if reason is None else {"reason": reason})
    assert body(TextDelta("a"), end)["status"] == status


def test_a_limit_after_a_whole_call_leaves_the_turn_complete() -> None:
    assert body(CALL, TurnEnd("max_output_tokens"))["status"] == "completed"
    cut = TurnEnd("max_output_tokens", call_incomplete=True)
    assert body(CALL, cut)["status"] == "incomplete"


def test_nothing_comes_after_done() -> None:
    encoder = ResponsesSse(options())
    encoder.feed([TextDelta("a"), END, TextDelta("late")])
    assert encoder.finished
    assert encoder.feed([TextDelta("later"), CALL, END]) == b""
    assert encoder.keepalive() == b""
    assert encoder.fail(DOWN.error) == b""


def test_the_answer_has_what_the_log_needs() -> None:
    encoder = ResponsesSse(options())
    encoder.feed([CALL, USAGE, DOWN, TurnEnd("failed", calls_truncated=True)])
    answer = encoder.answer
    assert (answer.calls, answer.finish_reason) == ([CALL], "tool_calls")
    assert answer.truncated
    assert answer.failure == DOWN.error
    assert answer.error is None
    usage = answer.usage()
    assert usage is not None
    assert usage["total_tokens"] == 153


# -- failures ------------------------------------------------------------------------------------


def test_a_failure_before_the_first_byte_is_raised() -> None:
    encoder = ResponsesSse(options())
    with pytest.raises(ProxyError, match="down"):
        encoder.feed([USAGE, DOWN, TurnEnd("failed")])
    assert encoder.finished
    assert encoder.keepalive() == b""
    assert encoder.result() == DOWN.error
    with pytest.raises(ProxyError, match="down"):
        body(DOWN, TurnEnd("failed"))


def test_a_failure_that_came_too_late_for_a_status_can_still_be_written() -> None:
    encoder = ResponsesSse(options())
    with pytest.raises(ProxyError) as raised:
        encoder.feed([DOWN, TurnEnd("failed")])
    assert check_stream(encoder.fail(raised.value.failure))["status"] == "failed"
    assert encoder.fail(DOWN.error) == b""


def test_a_failure_after_text_closes_the_item_fails_and_says_so_again() -> None:
    found = stream(TextDelta("a"), USAGE, DOWN, TurnEnd("failed"))
    assert [line(event) for event in found[2:-2]] == text_item(1, "a", status="incomplete")
    failed, error = found[-2:]
    assert failed["response"]["error"] == {"code": "server_error", "message": "down"}
    assert failed["response"]["usage"]["total_tokens"] == 153
    assert error == {
        "type": "error",
        "sequence_number": len(found) - 1,
        "code": "server_error",
        "message": "down",
        "param": None,
        "error": {"type": "server_error", "code": "server_error", "message": "down", "param": None},
    }
    with pytest.raises(ProxyError):
        body(TextDelta("a"), DOWN, TurnEnd("failed"))


def test_after_a_call_the_call_stands_and_the_failure_is_not_the_clients() -> None:
    found = stream(TextDelta("a"), CALL, DOWN, TurnEnd("failed"))
    assert found[-1]["type"] == "response.completed"
    assert not any(event["type"] == "error" for event in found)
    assert body(CALL, DOWN, TurnEnd("failed"))["status"] == "completed"


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (Failure("m", 400, "invalid_request_error", "invalid_prompt"), "invalid_prompt", "m"),
        (Failure("m", 400, "invalid_request_error", "whatever"), "invalid_prompt", "m"),
        (Failure("m", 401, "invalid_request_error", "invalid_api_key"), "invalid_prompt", "m"),
        (Failure("m", 400, code="context_length_exceeded"), "context_length_exceeded", "m"),
        (Failure("m", 429, code="insufficient_quota"), "insufficient_quota", "m"),
        (Failure("m", 429, code="queue_full"), "rate_limit_exceeded", "m"),
        (
            Failure("Slow down.", 429, code="rate_limit_exceeded", retry_after=1.5),
            "rate_limit_exceeded",
            "Slow down. Please try again in 1.5s.",
        ),
        (
            Failure("Try again in 2s", 429, code="rate_limit_exceeded", retry_after=2),
            "rate_limit_exceeded",
            "Try again in 2s",
        ),
        (Failure("m", 503, code="server_is_overloaded"), "server_error", "m"),
        (Failure("m", 500), "server_error", "m"),
    ],
)
def test_a_failure_has_one_of_the_codes_that_clients_act_on(
    failure: Failure, code: str, message: str
) -> None:
    failed = stream(TextDelta("a"), Failed(failure), TurnEnd("failed"))[-2]["response"]
    assert failed["error"] == {"code": code, "message": message}


@pytest.mark.parametrize("before", [[], [TextDelta("a")], [ReasoningDelta("a")]], ids=str)
def test_a_committed_stream_can_be_failed_from_outside(before: list[Event]) -> None:
    encoder = ResponsesSse(options())
    data = encoder.feed(before) + encoder.fail(DOWN.error)
    assert check_stream(data)["status"] == "failed"
    assert encoder.finished
    assert encoder.result() == DOWN.error


def test_a_stream_with_a_call_is_not_failed_from_outside_but_completed() -> None:
    encoder = ResponsesSse(options())
    data = encoder.feed([TextDelta("a"), CALL]) + encoder.fail(DOWN.error)
    assert check_stream(data)["status"] == "completed"
    assert encoder.answer.failure == DOWN.error
    assert encoder.result() is None


# -- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn",
    [
        [TextDelta("a"), CALL, END],
        [ReasoningDelta("a"), TextDelta("b"), TurnEnd("length")],
        [DOWN, TurnEnd("failed")],
    ],
    ids=["text and a call", "reasoning", "a failure"],
)
def test_a_keepalive_anywhere_leaves_the_stream_legal(turn: list[Event]) -> None:
    for place in range(len(turn)):
        encoder = ResponsesSse(options())
        try:
            early = encoder.feed(turn[:place])
        except ProxyError:
            continue
        alive = encoder.keepalive()
        data = early + alive + encoder.feed(turn[place:])
        check_stream(data)
        (event,) = [event for event in parse_stream(data) if event["type"] == "keepalive"]
        assert set(event) == {"type", "sequence_number"}
