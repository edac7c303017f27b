from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from attrs import evolve

from pipeline.assembly import Settings, recipe
from pipeline.events import (
    BackendNotice,
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    ToolOutput,
    TurnEnd,
    Usage,
)
from pipeline.turn import Tool, Turn
from sources.decode.turn_decoder import TurnDecoder

Message: TypeAlias = dict[str, Any]

TRANSCRIPTS = Path(__file__).parents[3] / "examples" / "transcripts" / "codex-0.89.0"
NAMES = ["text", "undeclared-call", "undeclared-burst", "mcp-noise", "use-tool-text"]
PREFIX = "codex/event/"


def transcript(name: str) -> list[Message]:
    lines = (TRANSCRIPTS / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def v1_lines(name: str) -> list[Message]:
    return [m for m in transcript(name) if m.get("method", "").startswith(PREFIX)]


def v2_lines(name: str) -> list[Message]:
    return [m for m in transcript(name) if not m.get("method", "").startswith(PREFIX)]


def decode(messages: Iterable[object]) -> list[Event]:
    decoder = TurnDecoder()
    return [event for message in messages for event in decoder.feed(message)]


def v1(kind: str, **msg: Any) -> Message:
    params = {"id": "0", "msg": {"type": kind, **msg}, "conversationId": "T"}
    return {"method": PREFIX + kind, "params": params}


def as_written(message: Message) -> Message:
    return message


def without_prefix(message: Message) -> Message:
    return message | {"method": message["method"].removeprefix(PREFIX)}


def with_flat_params(message: Message) -> Message:
    return {"method": message["method"], "params": message["params"]["msg"]}


def as_bare_event(message: Message) -> Message:
    return {"id": message["params"]["id"], "msg": message["params"]["msg"]}


def as_typed_event(message: Message) -> Message:
    msg = {key: value for key, value in message["params"]["msg"].items() if key != "type"}
    return {"type": message["method"].removeprefix(PREFIX), "msg": msg}


def as_flat_event(message: Message) -> Message:
    content: Message = message["params"]["msg"]
    return content


FORMS = [
    as_written,
    without_prefix,
    with_flat_params,
    as_bare_event,
    as_typed_event,
    as_flat_event,
]
Form: TypeAlias = Callable[[Message], Message]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def comparable(events: Iterable[Event]) -> list[Event]:
    """The events less what the dialects may differ in: item ids, and talk of the backend itself."""
    return [
        evolve(event, item_id="") if isinstance(event, TextDelta | ToolCall) else event
        for event in events
        if not isinstance(event, BackendNotice)
    ]


def texts(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


# -- the same as v2 --------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("name", NAMES)
def test_v1_lines_alone_give_the_same_as_the_v2_lines_of_the_same_run(
    name: str, form: Form
) -> None:
    told_by_v2 = comparable(decode(v2_lines(name)))
    assert len(told_by_v2) > 5
    assert isinstance(told_by_v2[-1], TurnEnd)
    assert comparable(decode(form(message) for message in v1_lines(name))) == told_by_v2


@pytest.mark.parametrize("name", NAMES)
def test_a_run_sent_in_three_dialects_is_decoded_once(name: str) -> None:
    assert comparable(decode(transcript(name))) == comparable(decode(v2_lines(name)))


def test_the_text_of_a_run_sent_in_three_dialects_comes_once() -> None:
    assert "".join(texts(decode(transcript("text")))) == "Hello, wörld 🌍!"


def test_one_family_is_listened_to_whatever_the_texts_of_the_others() -> None:
    endings = {
        PREFIX + "agent_message_content_delta": "/content",
        "item/agentMessage/delta": "/v2",
        PREFIX + "agent_message_delta": "/short",
    }
    messages = transcript("text")
    for message in messages:
        if ending := endings.get(message.get("method", "")):
            holder = message["params"].get("msg", message["params"])
            holder["delta"] += ending
    told = [text.rsplit("/", 1) for text in texts(decode(messages))]
    assert [text for text, _ in told] == ["Hel", "lo", ", ", "wörld ", "🌍", "!"]
    assert len({family for _, family in told}) == 1


def test_a_notice_of_the_backend_does_not_choose_the_dialect_of_the_turn() -> None:
    notice = v1("mcp_startup_complete")
    assert comparable(decode([notice, *v2_lines("text")])) == comparable(decode(v2_lines("text")))


def test_mcp_events_are_notices_of_the_backend() -> None:
    notices = [e.message for e in decode(v1_lines("mcp-noise")) if isinstance(e, BackendNotice)]
    assert notices == ["mcp_startup_complete", "mcp_tool_call_begin", "mcp_tool_call_end"]


# -- text and calls --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deltas",
    [
        [{"delta": "1"}, {"delta": "0"}, {"delta": "0"}],
        [{"content": "1"}, {"content": "0"}, {"content": "0"}],
        [{"delta": {"content": text}} for text in "100"],
    ],
    ids=["delta", "content", "chat delta"],
)
def test_a_delta_is_read_wherever_its_text_stands(deltas: list[Message]) -> None:
    messages = [v1("agent_message_delta", **delta) for delta in deltas]
    told = decode([*messages, v1("agent_message", message="100")])
    assert texts(told) == ["1", "0", "0"]


@pytest.mark.parametrize(
    "message",
    ["Hello", {"content": "Hello"}, {"content": [{"type": "text", "text": "Hello"}]}],
    ids=["text", "message", "parts"],
)
def test_messages_without_deltas_each_come_once(message: object) -> None:
    raw = {"type": "message", "role": "assistant", "content": [{"text": "Hello"}]}
    once = [v1("agent_message", message=message), v1("raw_response_item", item=raw)]
    assert texts(decode(once)) == ["Hello"]
    assert texts(decode(once * 2)) == ["Hello", "Hello"]


# The tool that is called is not the first: a name that was lost would be inferred as the other.
TOOLS = Turn(tools=(Tool("readNote"), Tool("localSearch")))
EXACT = '{"query": "x",  "n": 1.0}'


def chat_increments(key: str) -> list[Message]:
    """A call as Chat Completions streams it: the name first, then its arguments in pieces."""
    functions = [{"name": "localSearch", "arguments": ""}]
    functions += [{"arguments": EXACT[at : at + 7]} for at in range(0, len(EXACT), 7)]
    if key == "function_call":
        return [{"function_call": function} for function in functions]
    first, *more = [{"index": 0, "function": function} for function in functions]
    return [{"tool_calls": [call]} for call in ({"id": "call_1"} | first, *more)]


@pytest.mark.parametrize("inside_delta", [False, True], ids=["in the event", "in its delta"])
@pytest.mark.parametrize("key", ["tool_calls", "function_call"])
def test_increments_of_a_call_in_text_deltas_make_one_call(key: str, inside_delta: bool) -> None:
    increments = chat_increments(key)
    bodies = [{"delta": body} for body in increments] if inside_delta else increments
    events = decode(
        [
            v1("agent_message_delta", delta="Let me look."),
            *[v1("agent_message_delta", **body) for body in bodies],
            v1("task_complete"),
        ]
    )
    pieces = [event for event in events if isinstance(event, ToolCallFragment)]
    assert len(pieces) == len(increments)
    assert "".join(piece.arguments for piece in pieces) == EXACT
    assert texts(events) == ["Let me look."]

    out = recipe(Settings()).process(events, TOOLS)
    calls = [event for event in out if isinstance(event, ToolCall)]
    assert [(call.name, call.arguments) for call in calls] == [("localSearch", EXACT)]
    assert calls[0].call_id == "call_1" or key == "function_call"


def test_text_and_a_call_in_one_delta_both_come() -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "readNote", "arguments": "{}"}}
    told = decode([v1("agent_message_delta", delta="Look: ", tool_calls=[call])])
    assert [type(event) for event in told] == [TextDelta, ToolCallFragment]


def test_a_finished_message_may_carry_whole_calls() -> None:
    call = {"id": "call_1", "function": {"name": "localSearch", "arguments": EXACT}}
    message = {"content": None, "tool_calls": [call]}
    events = decode([v1("agent_message", message=message), v1("task_complete")])
    out = recipe(Settings()).process(events, TOOLS)
    calls = [event for event in out if isinstance(event, ToolCall)]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [("call_1", "localSearch", EXACT)]


def test_a_requested_call_counts_if_there_are_no_raw_items() -> None:
    request = v1("dynamic_tool_call_request", call_id="c1", tool="readNote", arguments={"path": 1})
    assert decode([request]) == [ToolCall("c1", "readNote", '{"path":1}')]
    item = {"type": "function_call", "call_id": "c1", "name": "readNote", "arguments": EXACT}
    told = decode([v1("raw_response_item", item=item), request])
    assert told == [ToolCall("c1", "readNote", EXACT)]


def test_the_output_of_a_tool_comes_from_its_raw_item() -> None:
    item = {"type": "function_call_output", "call_id": "c1", "output": {"content": "done"}}
    assert decode([v1("raw_response_item", item=item)]) == [ToolOutput("c1", "done")]


# -- reasoning -------------------------------------------------------------------------------------


def test_reasoning_comes_from_its_deltas_and_only_once() -> None:
    messages = [
        v1("agent_reasoning_delta", delta="Thin"),
        v1("reasoning_content_delta", delta="Thin", summary_index=0),
        v1("agent_reasoning_delta", delta="king"),
        v1("reasoning_content_delta", delta="king", summary_index=0),
        v1("agent_reasoning", text="Thinking"),
    ]
    assert decode(messages) == [ReasoningDelta("Thin"), ReasoningDelta("king")]


def test_reasoning_without_deltas_comes_from_its_finished_parts() -> None:
    messages = [v1("agent_reasoning", text="First."), v1("agent_reasoning", text="Second.")]
    assert decode(messages) == [
        ReasoningDelta("First.", part=0),
        ReasoningDelta("Second.", part=1),
    ]


@pytest.mark.parametrize("kind", ["agent_reasoning", "agent_reasoning_delta"])
def test_the_sealed_reasoning_item_does_not_repeat_its_summary(kind: str) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "Hm"}]}
    sealed = item | {"encrypted_content": "gAAAA"}
    told = decode([v1(kind, text="Hm", delta="Hm"), v1("raw_response_item", item=sealed)])
    assert told == [ReasoningDelta("Hm"), ReasoningItem("rs_1", ("Hm",), "gAAAA")]


def test_raw_reasoning_is_distinguished_from_its_summary() -> None:
    messages = [
        v1("agent_reasoning_raw_content_delta", delta="deep"),
        v1("reasoning_raw_content_delta", delta="deep"),
        v1("agent_reasoning_delta", delta="brief"),
    ]
    assert decode(messages) == [ReasoningDelta("deep", "text"), ReasoningDelta("brief", "summary")]


# -- usage, failures and ends ----------------------------------------------------------------------


def test_a_token_count_is_usage_once_for_each_change_of_the_total() -> None:
    last = {"input_tokens": 5, "cached_input_tokens": 2, "output_tokens": 3}
    counts: list[Message | None] = [None]
    counts += [
        {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
        for total in (8, 8, 16)
    ]
    usage = Usage(input_tokens=5, output_tokens=3, total_tokens=8, cached_tokens=2)
    told = decode(v1("token_count", info=info) for info in counts)
    assert told == [usage, ResponseEnd(), usage, ResponseEnd()]


@every_form
def test_a_stream_error_is_a_retry(form: Form) -> None:
    message = v1("stream_error", message="Reconnecting... 1/5", codex_error_info="other")
    assert decode([form(message)]) == [RetryNotice("Reconnecting... 1/5")]


@pytest.mark.parametrize(
    ("info", "status", "code"),
    [
        ("usage_limit_exceeded", 429, "insufficient_quota"),
        ("context_window_exceeded", 400, "context_length_exceeded"),
        ({"response_stream_disconnected": {"http_status_code": 503}}, 503, "server_is_overloaded"),
    ],
)
def test_an_error_says_what_it_is_in_snake_case(info: object, status: int, code: str) -> None:
    failed, end = decode([v1("error", message="no more", codex_error_info=info)])
    assert isinstance(failed, Failed)
    assert (failed.error.status, failed.error.code) == (status, code)
    assert failed.error.message == "no more"
    assert end == TurnEnd("failed")


# A flat event of type error is left out: by its shape it is one of the Responses API.
@pytest.mark.parametrize("form", FORMS[:5], ids=lambda form: form.__name__)
def test_an_error_in_the_middle_fails_and_ends_the_turn(form: Form) -> None:
    messages = [
        v1("task_started"),
        v1("agent_message_delta", delta="Hal"),
        v1("error", message="no more", codex_error_info="usage_limit_exceeded"),
        v1("task_complete"),
    ]
    events = decode(form(message) for message in messages)
    assert [type(event) for event in events] == [TextDelta, Failed, TurnEnd]


def test_an_answer_cut_by_its_limit_ends_with_that_reason_and_does_not_fail() -> None:
    message = "Incomplete response returned, reason: max_output_tokens"
    assert decode([v1("error", message=message)]) == [TurnEnd("max_output_tokens")]


def test_an_aborted_turn_fails_and_ends() -> None:
    failed, end = decode([v1("task_started"), v1("turn_aborted", reason="interrupted")])
    assert isinstance(failed, Failed)
    assert failed.error.code == "turn_interrupted"
    assert end == TurnEnd("interrupted")


def test_messages_of_another_conversation_or_turn_are_dropped() -> None:
    mine = v1("agent_message_delta", delta="mine")
    other_turn = {**mine, "params": mine["params"] | {"id": "1"}}
    other_thread = {**mine, "params": mine["params"] | {"conversationId": "T2"}}
    assert texts(decode([v1("task_started"), other_turn, other_thread, mine])) == ["mine"]
