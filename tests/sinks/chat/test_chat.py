"""Chat Completions on the wire, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import Failure, ProxyError
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolOutput,
    TurnEnd,
    Usage,
)
from sinks.answer import UnfinishedTurnError
from sinks.chat import ChatJson, ChatOptions, ChatSse
from sinks.finish_reason import ALIASES, finish_reason
from stages.tool_calls.aggregator import to_obsidian_xml

OPTIONS = ChatOptions("chatcmpl-1", 1700000000, "gpt-5")
CALL = ToolCall("call_a", "search", '{"q": "é <b>"}')
SECOND = ToolCall("call_b", "read", "{}", index=1)
END = TurnEnd("completed")
USAGE = Usage(120, 33, 153, 64, 9)


def stream(*events: Event, options: ChatOptions = OPTIONS) -> list[str]:
    data = ChatSse(options).feed(events)
    assert data.endswith(b"\n\n")
    return data.decode().removesuffix("\n\n").split("\n\n")


def chunks(*events: Event, options: ChatOptions = OPTIONS) -> list[dict[str, Any]]:
    frames = stream(*events, options=options)
    return [msgspec.json.decode(f[6:]) for f in frames if f.startswith('data: {"id"')]


def deltas(*events: Event, options: ChatOptions = OPTIONS) -> list[dict[str, Any]]:
    found = chunks(*events, options=options)
    return [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]


def body(*events: Event, options: ChatOptions = OPTIONS) -> dict[str, Any]:
    sink = ChatJson(options)
    sink.feed(events)
    return sink.result().body


# -- the stream, literally -----------------------------------------------------------------------


def test_a_text_answer_byte_by_byte() -> None:
    head = (
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,'
        '"model":"gpt-5","choices":[{"index":0,"delta":'
    )
    assert stream(TextDelta("Hi"), TextDelta(' "wörld"\n'), END) == [
        head + '{"role":"assistant"},"finish_reason":null}]}',
        head + '{"content":"Hi"},"finish_reason":null}]}',
        head + '{"content":" \\"wörld\\"\\n"},"finish_reason":null}]}',
        head + '{},"finish_reason":"stop"}]}',
        "data: [DONE]",
    ]


def test_a_call_is_one_delta_with_everything_in_it() -> None:
    role, text, call, finish = deltas(TextDelta("Hm."), CALL, END)
    assert role == {"role": "assistant"}
    assert text == {"content": "Hm."}
    assert finish == {}
    function = {"name": "search", "arguments": '{"q": "é <b>"}'}
    assert call == {
        "tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": function}]
    }


def test_the_order_is_finish_then_telemetry_then_usage_then_done() -> None:
    options = ChatOptions("chatcmpl-1", 1, "m", include_usage=True)
    frames = stream(CALL, SECOND, USAGE, TurnEnd("tool_calls"), options=options)
    assert '"finish_reason":"tool_calls"' in frames[-4]
    assert frames[-3] == (
        ': {"tool_call_count":2,"tool_call_truncated":false,"stop_after_tools_mode":"burst"}'
    )
    usage = msgspec.json.decode(frames[-2][6:])
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 120,
        "completion_tokens": 33,
        "total_tokens": 153,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 9},
    }
    assert frames[-1] == "data: [DONE]"
    assert sum('"finish_reason":"' in frame for frame in frames) == 1


def test_truncation_stands_in_the_telemetry() -> None:
    frames = stream(CALL, TurnEnd("tool_calls", calls_truncated=True))
    assert '"tool_call_truncated":true' in frames[-2]


def test_a_turn_without_calls_has_no_telemetry_and_usage_only_on_request() -> None:
    frames = stream(TextDelta("a"), USAGE, END)
    assert not any(frame.startswith(":") for frame in frames)
    assert not any('"usage"' in frame for frame in frames)


def test_unknown_usage_is_null_and_never_estimated() -> None:
    options = ChatOptions(include_usage=True)
    assert chunks(TextDelta("a"), END, options=options)[-1]["usage"] is None
    assert body(TextDelta("a"), END)["usage"] is None


def test_an_empty_answer_is_still_a_whole_stream() -> None:
    assert deltas(END) == [{"role": "assistant"}, {}]
    assert body(END)["choices"][0]["message"]["content"] == ""


def test_nothing_comes_after_done() -> None:
    encoder = ChatSse(OPTIONS)
    encoder.feed([TextDelta("a"), END, TextDelta("late")])
    assert encoder.finished
    assert encoder.feed([TextDelta("later"), CALL, END]) == b""


def test_events_that_are_not_for_clients_write_nothing() -> None:
    events: list[Event] = [ToolOutput("call_a", "secret"), ResponseEnd(), ReasoningItem("rs")]
    assert ChatSse(OPTIONS).feed(events) == b""


def test_reasoning_parts_are_kept_apart() -> None:
    thoughts = [ReasoningDelta("**A**"), ReasoningDelta(" x"), ReasoningDelta("**B**", part=1)]
    message = body(*thoughts, TextDelta("42"), END)["choices"][0]["message"]
    assert message["reasoning_content"] == "**A** x\n\n**B**"
    assert deltas(*thoughts, END)[1] == {"reasoning_content": "**A**"}


# -- failures ------------------------------------------------------------------------------------

DOWN = Failed(Failure("down", 502, "server_error", "upstream_error"))


def test_a_failure_before_the_first_byte_is_raised() -> None:
    with pytest.raises(ProxyError, match="down"):
        stream(USAGE, DOWN, TurnEnd("failed"))
    with pytest.raises(ProxyError, match="down"):
        body(DOWN, TurnEnd("failed"))


def test_a_failure_after_text_is_an_error_frame_and_done() -> None:
    frames = stream(TextDelta("a"), DOWN, TurnEnd("failed"))
    error = {"message": "down", "type": "server_error", "code": "upstream_error", "param": None}
    assert msgspec.json.decode(frames[-2][6:]) == {"error": error}
    assert frames[-1] == "data: [DONE]"
    assert len(frames) == 4
    with pytest.raises(ProxyError):
        body(TextDelta("a"), DOWN, TurnEnd("failed"))


def test_after_a_call_the_call_stands_and_the_failure_is_not_the_clients() -> None:
    frames = stream(TextDelta("a"), CALL, DOWN, TurnEnd("failed"))
    assert not any("error" in frame for frame in frames)
    assert '"finish_reason":"tool_calls"' in frames[-3]
    assert body(CALL, DOWN, TurnEnd("failed"))["choices"][0]["finish_reason"] == "tool_calls"


# -- finish reasons ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "has_calls", "call_incomplete", "reason"),
    [
        ("completed", False, False, "stop"),
        ("COMPLETED", False, False, "stop"),
        ("something new", False, False, "stop"),
        ("completed", True, False, "tool_calls"),
        ("failed", True, False, "tool_calls"),
        ("interrupted", True, False, "tool_calls"),
        ("max_output_tokens", False, False, "length"),
        ("max_output_tokens", True, False, "tool_calls"),
        ("max_output_tokens", True, True, "length"),
        ("content_filter", False, False, "content_filter"),
        ("function_call", True, False, "tool_calls"),
        ("tool_calls", False, False, "stop"),
    ],
)
def test_finish_reasons(word: str, has_calls: bool, call_incomplete: bool, reason: str) -> None:
    assert finish_reason(word, has_calls=has_calls, call_incomplete=call_incomplete) == reason


def test_every_alias_is_one_of_the_four_words() -> None:
    assert set(ALIASES.values()) == {"stop", "length", "tool_calls", "content_filter"}


# -- the other shapes ----------------------------------------------------------------------------


def test_the_body_of_a_turn_with_calls_and_no_text() -> None:
    answer = body(CALL, USAGE, TurnEnd("tool_calls"))
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"] is None
    assert "index" not in message["tool_calls"][0]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("declares_tools", "events", "comment"),
    [
        (True, [TextDelta("a"), END], True),
        (True, [END], True),
        (True, [CALL, END], True),
        (False, [CALL, END], True),
        (False, [TextDelta("a"), END], False),
    ],
)
def test_a_stream_with_tools_or_calls_tells_of_its_calls_before_the_usage_and_the_end(
    declares_tools: bool, events: list[Event], comment: bool
) -> None:
    options = ChatOptions(declares_tools=declares_tools, include_usage=True)
    frames = stream(*events, options=options)
    count = sum(isinstance(event, ToolCall) for event in events)
    comment_line = f': {{"tool_call_count":{count},"tool_call_truncated":false,'
    comment_line += '"stop_after_tools_mode":"burst"}'
    finish, *rest = frames[-4:] if comment else frames[-3:]
    assert '"finish_reason":"' in finish
    assert rest[0] == comment_line if comment else comment_line not in frames
    assert '"usage":' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert sum(frame.startswith(":") for frame in frames) == comment


def test_headers_tell_of_the_calls() -> None:
    sink = ChatJson(ChatOptions(cut_mode="first"))
    sink.feed([CALL, TurnEnd("tool_calls", calls_truncated=True)])
    assert sink.result().headers == {
        "x-codex-tool-call-count": "1",
        "x-codex-tool-call-truncated": "true",
        "x-codex-stop-after-tools-mode": "first",
    }


def test_legacy_functions_get_the_legacy_shape() -> None:
    options = ChatOptions(legacy_functions=True)
    choice = body(CALL, TurnEnd("tool_calls"), options=options)["choices"][0]
    function = {"name": "search", "arguments": '{"q": "é <b>"}'}
    assert choice["message"]["function_call"] == function
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    assert deltas(CALL, TurnEnd("tool_calls"), options=options)[1] == {"function_call": function}


def test_obsidian_gets_blocks_in_the_text_beside_the_calls() -> None:
    options = ChatOptions(write_xml=True, delimiter="\n--\n")
    first = "<use_tool>\n<name>search</name>\n<q>é <b></q>\n</use_tool>"
    second = "<use_tool>\n<name>read</name>\n</use_tool>"
    message = body(TextDelta("Hm. "), CALL, SECOND, END, options=options)["choices"][0]["message"]
    assert message["content"] == f"Hm. {first}\n--\n{second}"
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize("between", [(), (TextDelta("and"),), (TextDelta("a"), TextDelta("b"))])
def test_the_delimiter_stands_before_every_block_but_the_first(between: Sequence[Event]) -> None:
    options = ChatOptions(write_xml=True, delimiter="\n--\n")
    events = [TextDelta("Hm."), CALL, *between, SECOND, *between, CALL, END]
    content = body(*events, options=options)["choices"][0]["message"]["content"]
    said = "".join(event.text for event in between if isinstance(event, TextDelta))
    blocks = [to_obsidian_xml(call) for call in (CALL, SECOND, CALL)]
    assert content == f"Hm.{blocks[0]}{said}\n--\n{blocks[1]}{said}\n--\n{blocks[2]}"
    streamed = [delta.get("content", "") for delta in deltas(*events, options=options)]
    assert "".join(streamed) == content


def test_several_choices_share_one_stream() -> None:
    options = ChatOptions(choices=2, include_usage=True)
    events: list[Event] = [
        TextDelta("a"),
        TextDelta("b", choice=1),
        TurnEnd("completed"),
        Usage(1, 1, 2, choice=1),
        Usage(1, 1, 2),
        ToolCall("call_1", "f", "{}", choice=1),
        TurnEnd("tool_calls", choice=1),
    ]
    found = chunks(*events, options=options)
    finishes = [
        (c["index"], c["finish_reason"]) for f in found for c in f["choices"] if c["finish_reason"]
    ]
    assert finishes == [(0, "stop"), (1, "tool_calls")]
    assert found[-1]["usage"]["total_tokens"] == 4
    assert [c["message"]["content"] for c in body(*events, options=options)["choices"]] == [
        "a",
        "b",
    ]


# -- laws ----------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """A legal turn that does not fail."""
    events: list[Event] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trcu"), max_size=12)):
        match kind:
            case "t":
                events.append(TextDelta(draw(TEXTS)))
            case "r":
                events.append(ReasoningDelta(draw(TEXTS), part=draw(st.integers(0, 2))))
            case "u":
                events.append(Usage(draw(st.integers(0, 9)), 1, 2))
            case _:
                events.append(ToolCall(f"call_{calls}", draw(TEXTS), draw(TEXTS), index=calls))
                calls += 1
    words = ["completed", "tool_calls", "max_output_tokens", "content_filter"]
    truncated = draw(st.booleans())
    return [*events, TurnEnd(draw(st.sampled_from(words)), calls_truncated=truncated)]


def fold(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream: it concatenates."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    finish, usage = None, None
    for frame in frames:
        usage = frame.get("usage", usage)
        for choice in frame["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content", "")
            message["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                assert call["index"] not in message["tool_calls"]
                message["tool_calls"][call.pop("index")] = call
            finish = choice["finish_reason"] or finish
    return {"message": message, "finish": finish, "usage": usage}


@pytest.mark.parametrize("write_xml", [False, True])
@given(events=turns(), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_the_stream_folds_to_the_body(
    write_xml: bool, events: list[Event], cuts: list[int]
) -> None:
    options = ChatOptions(include_usage=True, write_xml=write_xml)
    encoder = ChatSse(options)
    edges = [0, *sorted(cuts), len(events)]
    data = b"".join(encoder.feed(events[a:b]) for a, b in pairwise(edges))
    frames = data.decode().removesuffix("\n\n").split("\n\n")
    assert frames.count("data: [DONE]") == 1
    assert frames[-1] == "data: [DONE]"
    folded = fold([msgspec.json.decode(f[6:]) for f in frames if f.startswith('data: {"id"')])
    answer = body(*events, options=options)
    message = answer["choices"][0]["message"]
    assert folded["message"]["content"] == (message["content"] or "")
    assert folded["message"]["reasoning_content"] == message.get("reasoning_content", "")
    assert list(folded["message"]["tool_calls"].values()) == message.get("tool_calls", [])
    assert folded["finish"] == answer["choices"][0]["finish_reason"]
    assert folded["usage"] == answer["usage"]


# -- around the events ----------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [ChatSse(OPTIONS), ChatJson(OPTIONS)], ids=["sse", "json"])
def test_a_turn_without_an_end_has_no_result(sink: ChatSse | ChatJson) -> None:
    sink.feed([TextDelta("a")])
    assert not sink.finished
    with pytest.raises(UnfinishedTurnError, match="guard"):
        sink.result()


def test_a_burst_is_one_piece_of_the_stream_and_an_empty_one_adds_nothing() -> None:
    sink = ChatSse(OPTIONS)
    assert sink.feed([TextDelta("a"), TextDelta("b")]).count(b"data: ") == 3
    assert sink.feed([ResponseEnd()]) == sink.feed([]) == b""
    assert sink.feed([TextDelta("c"), END]).endswith(b"data: [DONE]\n\n")
    assert sink.result() is None


def test_a_body_is_written_by_its_result_alone() -> None:
    sink = ChatJson(OPTIONS)
    assert sink.keepalive() + sink.feed([TextDelta("a"), END]) + sink.fail(DOWN.error) == b""
    assert sink.finished
    assert sink.result().body["choices"][0]["message"]["content"] == "a"


def test_a_silence_is_filled_with_a_comment_until_the_end() -> None:
    sink = ChatSse(OPTIONS)
    assert sink.keepalive() == b": ping\n\n"
    sink.feed([TextDelta("a"), END])
    assert sink.keepalive() == b""


@pytest.mark.parametrize("before", [[], [TextDelta("a")], [CALL]], ids=str)
def test_a_stream_can_be_failed_from_outside_once(before: list[Event]) -> None:
    sink = ChatSse(OPTIONS)
    sink.feed(before)
    error, done, rest = sink.fail(DOWN.error).split(b"\n\n")
    assert msgspec.json.decode(error[6:]) == DOWN.error.body()
    assert (done, rest) == (b"data: [DONE]", b"")
    assert sink.finished
    assert sink.result() == DOWN.error
    assert sink.fail(DOWN.error) == sink.keepalive() == sink.feed([TextDelta("b"), END]) == b""


def test_a_failure_that_came_too_late_for_a_status_can_still_be_written() -> None:
    sink = ChatSse(OPTIONS)
    with pytest.raises(ProxyError) as raised:
        sink.feed([DOWN, TurnEnd("failed")])
    assert sink.finished
    assert sink.keepalive() == b""
    assert sink.fail(raised.value.failure).endswith(b"data: [DONE]\n\n")
    assert sink.result() == DOWN.error


def test_a_stream_that_has_ended_cannot_fail() -> None:
    sink = ChatSse(OPTIONS)
    sink.feed([TextDelta("a"), END])
    assert sink.fail(DOWN.error) == b""
    assert sink.result() is None


def test_calls_are_known_in_the_order_they_were_written() -> None:
    events: list[Event] = [CALL, evolve(SECOND, choice=1), TurnEnd(choice=1)]
    events += [evolve(CALL, call_id="c"), END]
    for sink in (ChatSse(ChatOptions(choices=2)), ChatJson(ChatOptions(choices=2))):
        sink.feed(events)
        assert sink.call_ids == ("call_a", "call_b", "c")
        assert sink.finished


def test_an_ended_choice_takes_nothing_more_while_another_goes_on() -> None:
    options = ChatOptions(choices=2)
    first: list[Event] = [TextDelta("a"), END]
    late: list[Event] = [END, CALL, ReasoningDelta("b")]
    second: list[Event] = [TextDelta("c", choice=1), TurnEnd(choice=1)]
    whole = body(*first, *late, *second, options=options)
    assert whole == body(*first, *second, options=options)
    assert stream(*first, *late, *second, options=options) == stream(
        *first, *second, options=options
    )
