from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    ToolOutput,
    TurnEnd,
    Usage,
)
from sources.decode.turn_decoder import TurnDecoder

TRANSCRIPTS = Path(__file__).parents[3] / "examples" / "transcripts"


def transcript(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TRANSCRIPTS / name).read_text("utf-8").splitlines()]


def decode(messages: Iterable[object], *, known_calls: frozenset[str] = frozenset()) -> list[Event]:
    decoder = TurnDecoder(known_calls=known_calls)
    return [event for message in messages for event in decoder.feed(message)]


def without(messages: Iterable[dict[str, Any]], *methods: str) -> list[dict[str, Any]]:
    return [m for m in messages if not str(m.get("method", "")).startswith(methods)]


def v2(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": "T", "turnId": "0", **params}}


def started() -> dict[str, Any]:
    return {"method": "turn/started", "params": {"threadId": "T", "turn": {"id": "0"}}}


def completed(status: str = "completed", error: object = None) -> dict[str, Any]:
    turn = {"id": "0", "status": status, "error": error}
    return {"method": "turn/completed", "params": {"threadId": "T", "turn": turn}}


def delta(text: object) -> dict[str, Any]:
    return v2("item/agentMessage/delta", itemId="msg_1", delta=text)


def raw_message(text: str, role: str = "assistant") -> dict[str, Any]:
    item = {"type": "message", "role": role, "content": [{"text": text}]}
    return v2("rawResponseItem/completed", item=item)


def in_brief(event: Event) -> str:
    match event:
        case TextDelta():
            return f"text {event.text}"
        case ReasoningDelta():
            return f"{event.kind} {event.part} {event.text}"
        case ReasoningItem():
            return f"reasoning {event.item_id} {event.summary} {event.encrypted_content}"
        case ToolCall():
            return f"call {event.call_id} {event.name} {event.arguments}"
        case ToolOutput():
            return f"output {event.call_id} {event.output}"
        case Usage():
            cached, thought = event.cached_tokens, event.reasoning_tokens
            return f"usage {event.input_tokens}({cached}) {event.output_tokens}({thought})"
        case ResponseEnd():
            return f"response {event.response_id}"
        case RetryNotice():
            return f"retry {event.message}"
        case Failed():
            return f"failed {event.error.status} {event.error.code}"
        case TurnEnd():
            return f"end {event.reason}"
        case _:
            return type(event).__name__


def brief(events: Iterable[Event]) -> list[str]:
    return [in_brief(event) for event in events]


def texts(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def calls(events: Iterable[Event]) -> list[ToolCall]:
    return [event for event in events if isinstance(event, ToolCall)]


USAGE = ["usage 120(64) 33(9)", "response resp_1"]
CANCELLED = "dynamic tool call was cancelled before receiving a response"
INTERRUPTED = ["failed 502 turn_interrupted", "end interrupted"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "text",
            [
                *["text Hel", "text lo", "text , ", "text wörld ", "text 🌍", "text !"],
                *USAGE,
                "end completed",
            ],
        ),
        (
            "call-interrupted",
            [
                *["text Let me ", "text look."],
                'call call_a localSearch {"query": "x",  "n": 1.0}',
                *USAGE,
                f"output call_a {CANCELLED}",
                *INTERRUPTED,
            ],
        ),
        (
            "burst-interrupted-after-last",
            [
                "text On it.",
                'call call_a localSearch {"query":"a"}',
                'call call_b readNote {"path":"b.md"}',
                'call call_c localSearch {"query":"a"}',
                *USAGE,
                *[f"output call_{letter} {CANCELLED}" for letter in "abc"],
                *INTERRUPTED,
            ],
        ),
        (
            "reasoning",
            [
                *["summary 0 **Thin", "summary 0 king** hard"],
                "reasoning rs_1 ('**Thinking** hard',) gAAAA",
                "text 42",
                *USAGE,
                "end completed",
            ],
        ),
        (
            "retry-after-partial-text",
            [
                "text Hello par",
                "retry Reconnecting... 1/2",
                *["text Hello par", "text tial no more"],
                *USAGE,
                "end completed",
            ],
        ),
    ],
)
def test_a_real_transcript_decodes_to_its_events_in_order(name: str, expected: list[str]) -> None:
    assert brief(decode(transcript(f"codex-0.166.0/{name}.jsonl"))) == expected


def test_calls_keep_the_models_order_though_requested_in_another() -> None:
    messages = transcript("codex-0.166.0/burst-interrupted-after-last.jsonl")
    requests = [m["params"]["callId"] for m in messages if m.get("method") == "item/tool/call"]
    assert requests == ["call_a", "call_c", "call_b"]
    assert [call.call_id for call in calls(decode(messages))] == ["call_a", "call_b", "call_c"]


def test_events_carry_the_time_and_the_choice_they_are_decoded_for() -> None:
    decoder = TurnDecoder(choice=2)
    messages = transcript("codex-0.166.0/reasoning.jsonl")
    events = [e for second, m in enumerate(messages) for e in decoder.feed(m, float(second))]
    assert {event.choice for event in events} == {2}
    times = [event.at for event in events]
    assert times == sorted(times)
    assert times[-1] == len(messages) - 1


# -- one teller at a time, usage too ---------------------------------------------------------------


def test_without_raw_events_the_text_still_comes() -> None:
    told = decode(without(transcript("codex-0.166.0/text.jsonl"), "rawResponse"))
    assert "".join(texts(told)) == "Hello, wörld 🌍!"
    assert brief(told)[-3:] == ["usage 120(64) 33(9)", "response ", "end completed"]


@pytest.mark.parametrize(
    "silenced",
    [("item/started",), ("item/tool/call",), ()],
    ids=["told as requests", "told as items", "told as both"],
)
def test_without_raw_events_each_call_comes_once(silenced: tuple[str, ...]) -> None:
    messages = transcript("codex-0.166.0/burst-interrupted-after-last.jsonl")
    told = calls(decode(without(messages, "rawResponse", *silenced)))
    assert sorted((call.call_id, call.name, call.arguments) for call in told) == [
        ("call_a", "localSearch", '{"query":"a"}'),
        ("call_b", "readNote", '{"path":"b.md"}'),
        ("call_c", "localSearch", '{"query":"a"}'),
    ]


def test_without_raw_events_a_tools_output_comes_from_its_item() -> None:
    messages = without(transcript("codex-0.166.0/call-answered.jsonl"), "rawResponse")
    outputs = [event for event in decode(messages) if isinstance(event, ToolOutput)]
    assert [(event.call_id, event.output) for event in outputs] == [("call_a", "tool result")]


def test_without_raw_events_the_finished_reasoning_comes_once() -> None:
    messages = without(transcript("codex-0.166.0/reasoning.jsonl"), "rawResponse")
    told = [e for e in brief(decode(messages)) if e.startswith(("summary", "reasoning"))]
    assert told == [
        *["summary 0 **Thin", "summary 0 king** hard"],
        "reasoning rs_1 ('**Thinking** hard',) None",
    ]


@pytest.mark.parametrize(
    "silenced",
    [
        ("item/agentMessage/delta",),
        ("item/agentMessage/delta", "rawResponse"),
        ("item/agentMessage/delta", "item/completed"),
        ("item/",),
    ],
    ids=["no deltas", "neither deltas nor raw items", "started and raw", "raw items only"],
)
def test_without_deltas_the_whole_text_comes_once(silenced: tuple[str, ...]) -> None:
    messages = without(transcript("codex-0.166.0/text.jsonl"), *silenced)
    assert texts(decode(messages)) == ["Hello, wörld 🌍!"]


def test_messages_that_came_only_as_raw_items_each_come() -> None:
    messages = without(transcript("codex-0.166.0/call-answered.jsonl"), "item/")
    assert texts(decode(messages)) == ["Let me look.", "The tool said so."]


def test_equal_neighbouring_deltas_are_all_kept() -> None:
    item = {"type": "agentMessage", "id": "msg_1", "text": "1000"}
    messages = [
        started(),
        v2("item/started", item=item | {"text": ""}),
        *[delta(digit) for digit in "1000"],
        v2("item/completed", item=item),
        raw_message("1000"),
        completed(),
    ]
    assert texts(decode(messages)) == ["1", "0", "0", "0"]


def test_usage_comes_once_for_each_upstream_response() -> None:
    told = brief(decode(transcript("codex-0.166.0/call-answered.jsonl")))
    assert [e for e in told if e.startswith(("usage", "response"))] == USAGE * 2


def test_with_totals_only_usage_comes_once_for_each_change_of_the_total() -> None:
    messages = without(transcript("codex-0.89.0/undeclared-call.jsonl"), "codex/event/")
    totals = [
        m["params"]["tokenUsage"]["total"]["totalTokens"]
        for m in messages
        if m.get("method") == "thread/tokenUsage/updated"
    ]
    assert totals == [153, 153, 306]
    told = [e for e in brief(decode(messages)) if e.startswith(("usage", "response"))]
    assert told == ["usage 120(64) 33(9)", "response "] * 2


@pytest.mark.parametrize("earlier_told", [True, False])
def test_a_follow_up_has_its_own_usage_whether_or_not_that_of_its_calls_was_told(
    earlier_told: bool,
) -> None:
    def total(tokens: int) -> dict[str, Any]:
        spent = {"inputTokens": 100, "outputTokens": 1, "totalTokens": tokens}
        return v2("thread/tokenUsage/updated", tokenUsage={"last": spent, "total": spent})

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    decoder = TurnDecoder(raw_items=True)
    for message in (started(), v2("rawResponseItem/completed", item=call)):
        decoder.feed(message)
    decoder.resume()
    follow_up = [
        v2("rawResponseItem/completed", item=output),
        *([total(101)] if earlier_told else []),
        delta("Done."),
        total(202),
        completed(),
    ]
    events = [event for message in follow_up for event in decoder.feed(message)]
    assert [event.total_tokens for event in events if isinstance(event, Usage)] == [202]


@pytest.mark.parametrize("totals_first", [True, False])
def test_usage_that_is_told_in_both_forms_counts_once(totals_first: bool) -> None:
    spent = {"inputTokens": 120, "outputTokens": 33, "totalTokens": 153}
    total = v2("thread/tokenUsage/updated", tokenUsage={"last": spent, "total": spent})
    end = v2("rawResponse/completed", responseId="r", usage=spent)
    told = [total, end] if totals_first else [end, total]
    found = decode([started(), delta("Hi"), *told, completed()])
    assert sum(isinstance(event, Usage) for event in found) == 1
    assert sum(isinstance(event, ResponseEnd) for event in found) == 1


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("E401", "failed 401 invalid_api_key"),
        ("E429", "failed 429 insufficient_quota"),
        ("E500", "failed 500 server_error"),
        ("ECTX", "failed 400 context_length_exceeded"),
        ("ECUT", "failed 502 upstream_error"),
    ],
)
def test_an_error_sent_twice_is_reported_once(name: str, failure: str) -> None:
    messages = transcript(f"codex-0.166.0/error-{name}.jsonl")
    assert brief(decode(messages))[-2:] == [failure, "end failed"]
    assert sum(isinstance(event, Failed) for event in decode(messages)) == 1
    assert sum(m.get("method") == "error" for m in messages) == 1


def test_an_error_sent_only_as_the_turns_status_is_reported() -> None:
    error = {"message": "no room", "codexErrorInfo": "contextWindowExceeded"}
    told = brief(decode([started(), completed("failed", error)]))
    assert told == ["failed 400 context_length_exceeded", "end failed"]


def test_an_error_that_will_be_retried_is_a_notice_and_no_failure() -> None:
    error = v2("error", error={"message": "Reconnecting... 1/5"}, willRetry=True)
    assert brief(decode([started(), error])) == ["retry Reconnecting... 1/5"]


def test_an_interrupted_turn_fails_and_ends() -> None:
    told = brief(decode([started(), delta("Hal"), completed("interrupted")]))
    assert told == ["text Hal", *INTERRUPTED]


def test_an_answer_cut_by_its_limit_ends_with_that_reason_and_does_not_fail() -> None:
    told = brief(decode(transcript("codex-0.166.0/error-EINC.jsonl")))
    assert told == ["text Half", "end max_output_tokens"]


def test_nothing_comes_after_the_end_of_the_turn() -> None:
    decoder = TurnDecoder()
    messages = transcript("codex-0.166.0/call-answered.jsonl")
    for message in messages:
        decoder.feed(message)
    assert decoder.ended
    again = [event for message in messages for event in decoder.feed(message)]
    assert again == []
    assert decoder.dropped["after the end of the turn"] > 0


def test_an_error_answer_before_the_turn_is_a_failure() -> None:
    answer = {"id": 2, "error": {"code": -32600, "message": "no such model"}}
    events = decode([{"id": 1, "result": {"thread": {"id": "T"}}}, answer, started()])
    assert brief(events) == ["failed 400 invalid_request_error", "end failed"]


def test_an_error_answer_after_a_notice_of_the_backend_is_still_before_the_turn() -> None:
    notice = {"method": "mcpServer/startupStatus/updated", "params": {"name": "x"}}
    answer = {"id": 2, "error": {"code": -32600, "message": "no such model"}}
    told = brief(decode([notice, answer]))
    assert told == ["BackendNotice", "failed 400 invalid_request_error", "end failed"]


def test_an_error_answer_in_the_middle_of_the_turn_changes_nothing() -> None:
    answer = {"id": 3, "error": {"code": -32600, "message": "no such turn"}}
    told = brief(decode([started(), delta("Hi"), answer, completed()]))
    assert told == ["text Hi", "end completed"]


# -- what is not of this turn, or of no turn -------------------------------------------------------


def test_calls_that_were_injected_as_history_are_not_calls() -> None:
    messages = without(transcript("codex-0.166.0/call-answered.jsonl"), "turn/started")
    assert [call.call_id for call in calls(decode(without(messages, "rawResponse")))] == ["call_a"]
    requested = without(messages, "rawResponse")
    assert calls(decode(requested, known_calls=frozenset({"call_a"}))) == []


def test_a_call_under_an_id_of_the_history_is_a_call_once_the_turn_has_started() -> None:
    messages = transcript("codex-0.166.0/call-answered.jsonl")
    found = calls(decode(messages, known_calls=frozenset({"call_a"})))
    assert [call.call_id for call in found] == ["call_a"]


def test_messages_of_another_thread_or_turn_are_dropped() -> None:
    decoder = TurnDecoder()
    messages = [
        started(),
        delta("mine"),
        v2("item/agentMessage/delta", threadId="T2", delta="of another thread"),
        v2("item/agentMessage/delta", turnId="1", delta="of another turn"),
        v2("turn/completed", threadId="T2", turnId="5", turn={"id": "5", "status": "failed"}),
        delta(" alone"),
    ]
    events = [event for message in messages for event in decoder.feed(message)]
    assert texts(events) == ["mine", " alone"]
    assert decoder.dropped["another thread"] == 2
    assert decoder.dropped["another turn"] == 1
    assert not decoder.ended


def test_an_echo_of_history_does_not_hide_the_turn_that_starts_after_it() -> None:
    echo = raw_message("old answer")
    echo["params"]["turnId"] = "auto-compact-0"
    assert texts(decode([echo, started(), delta("new")]))[-1] == "new"


def test_the_users_own_message_is_an_echo() -> None:
    assert decode([started(), raw_message("hello", "user")]) == []


@pytest.mark.parametrize("wrong", [None, 7, ["a"], {"text": "a"}], ids=repr)
def test_a_delta_that_is_not_text_is_dropped(wrong: object) -> None:
    assert texts(decode([started(), delta(wrong), delta("right")])) == ["right"]


def test_unknown_methods_are_counted_by_name() -> None:
    decoder = TurnDecoder()
    for name in ("thread/danced", "thread/danced", "thread/sang"):
        assert decoder.feed({"method": name, "params": {}}) == ()
    assert decoder.dropped == {
        "unknown method: thread/danced": 2,
        "unknown method: thread/sang": 1,
    }
    assert decoder.recognized == 0


def test_a_hostile_stream_of_methods_does_not_fill_the_books() -> None:
    decoder = TurnDecoder()
    for number in range(10_000):
        decoder.feed({"method": f"{number}/{'x' * 1000}"})
    assert decoder.dropped.total() == 10_000
    assert len(decoder.dropped) < 200
    assert max(map(len, decoder.dropped)) < 200
