"""The Responses sinks: items, reasoning, and the shapes around them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from attrs import evolve

from pipeline.events import (
    Event,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    TurnEnd,
)
from sinks.answer import UnfinishedTurnError
from sinks.responses import ResponsesJson, ResponsesMessages, ResponsesOptions, ResponsesSse
from tests.support.responses_automaton import check_stream, parse_stream
from tests.support.responses_turns import (
    CALL,
    DOWN,
    END,
    SECOND,
    body,
    middle,
    options,
    stream,
    text_item,
)

ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}


def test_a_call_of_an_undeclared_tool_keeps_the_name_and_namespace_it_came_with() -> None:
    (item,) = body(evolve(SECOND, namespace="x"), END)["output"]
    assert (item["name"], item["namespace"]) == ("unknown", "x")
    (item,) = body(evolve(CALL, namespace="x"), END)["output"]
    assert "namespace" not in item


def test_arguments_are_the_models_own_string() -> None:
    first, second = body(CALL, SECOND, END)["output"]
    assert first["arguments"] == '{"q": "é <b>"}'
    assert (first["call_id"], second["call_id"]) == ("call_a", "call_b")
    assert len({first["id"], second["id"]}) == 2


def test_free_text_that_is_empty_or_malformed_is_still_written() -> None:
    shell = ToolCall("call_a", "shell", '{"input":""}')
    assert "custom_tool_call_input.delta ctc_1 " in middle(shell, END)
    (item,) = body(evolve(shell, arguments="ls"), END)["output"]
    assert item["input"] == "ls"


# -- reasoning -----------------------------------------------------------------------------------


def reasoning_of(*events: Event, **choices: Any) -> list[tuple[str, list[str], str | None]]:
    """The id, summary and sealed content of every reasoning item."""
    stream(*events, **choices)
    return [
        (item["id"], [part["text"] for part in item["summary"]], item.get("encrypted_content"))
        for item in body(*events, **choices)["output"]
        if item["type"] == "reasoning"
    ]


SEALED = ReasoningItem("rs_x", ("A",), "sealed")


def test_sealed_reasoning_is_written_on_request_alone() -> None:
    thought = ReasoningDelta("A", item_id="rs_x")
    assert reasoning_of(thought, SEALED, END) == [("rs_x", ["A"], None)]
    asked = reasoning_of(thought, SEALED, END, include_encrypted=True)
    assert asked == [("rs_x", ["A"], "sealed")]


def test_reasoning_switched_off_leaves_no_trace() -> None:
    quiet: list[Event] = [TextDelta("a"), ReasoningDelta("A"), SEALED, TextDelta("b"), END]
    assert middle(*quiet, reasoning=False) == text_item(1, "ab", "a", "b")


def test_a_seal_that_comes_after_its_item_was_closed_is_not_a_second_item() -> None:
    late: list[Event] = [ReasoningDelta("A", item_id="rs_x"), TextDelta("b"), SEALED, END]
    assert reasoning_of(*late) == [("rs_x", ["A"], None)]


def test_thoughts_of_two_items_are_two_items() -> None:
    two: list[Event] = [
        ReasoningDelta("A", item_id="rs_x"),
        ReasoningDelta("B", item_id="rs_y"),
        END,
    ]
    assert reasoning_of(*two) == [("rs_x", ["A"], None), ("rs_y", ["B"], None)]


def test_thoughts_that_return_to_a_closed_item_get_another_id() -> None:
    thought = ReasoningDelta("A", item_id="rs_x")
    found = reasoning_of(thought, TextDelta("b"), thought, END)
    assert [(own_id == "rs_x", summary) for own_id, summary, _ in found] == [
        (True, ["A"]),
        (False, ["A"]),
    ]


def test_a_seal_without_an_id_belongs_to_the_open_item() -> None:
    found = reasoning_of(
        ReasoningDelta("A", item_id="rs_x"), evolve(SEALED, item_id=""), END, include_encrypted=True
    )
    assert found == [("rs_x", ["A"], "sealed")]


# -- the other shapes ----------------------------------------------------------------------------


def test_obsidian_gets_blocks_in_the_text_beside_the_items() -> None:
    first = "<use_tool>\n<name>search</name>\n<q>é <b></q>\n</use_tool>"
    second = "<use_tool>\n<name>unknown</name>\n</use_tool>"
    events: list[Event] = [TextDelta("Hm. "), CALL, SECOND, TextDelta("So."), END]
    found = body(*events, write_xml=True, delimiter="\n--\n")["output"]
    kinds = ["message", "function_call", "message", "function_call", "message"]
    assert [item["type"] for item in found] == kinds
    texts = [item["content"][0]["text"] for item in found[::2]]
    assert texts == [f"Hm. {first}", f"\n--\n{second}", "So."]
    assert stream(*events, write_xml=True, delimiter="\n--\n")[-1]["response"]["output"] == found


def test_the_delimiter_stands_before_a_block_though_text_stands_between() -> None:
    events: list[Event] = [CALL, TextDelta("and"), SECOND, END]
    found = body(*events, write_xml=True, delimiter="\n--\n")["output"]
    texts = [item["content"][0]["text"] for item in found if item["type"] == "message"]
    first = "<use_tool>\n<name>search</name>\n<q>é <b></q>\n</use_tool>"
    second = "<use_tool>\n<name>unknown</name>\n</use_tool>"
    assert texts == [first, f"and\n--\n{second}"]


def test_the_response_repeats_the_request() -> None:
    format_ = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    echo = {
        "model": "m",
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
        "tool_choice": "required",
        "text": {"format": format_, "verbosity": "low"},
        "reasoning": {"effort": "high"},
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "temperature": None,
        "conversation": {"id": "conv_1"},
        "id": "resp_stolen",
        "output": ["stolen"],
    }
    sink = ResponsesJson(evolve(options(), echo=echo))
    sink.feed([END])
    found = sink.result().body
    assert (found["id"], found["output"]) == ("resp_1", [])
    nothing = {"description": None, "parameters": None, "strict": None}
    assert found["tools"] == [{**nothing, "type": "function", "name": "f"}, {"type": "web_search"}]
    assert found["text"] == {
        "format": {"description": None, "strict": None} | format_,
        "verbosity": "low",
    }
    assert found["reasoning"] == {"effort": "high", "summary": None}
    assert found["temperature"] == 1.0
    same = ("instructions", "tool_choice", "metadata", "previous_response_id", "conversation")
    assert {name: found[name] for name in same} == {name: echo[name] for name in same}


def test_headers_tell_of_the_calls() -> None:
    sink = ResponsesJson(options(cut_mode="first"))
    sink.feed([CALL, TurnEnd("tool_calls", calls_truncated=True)])
    assert sink.result().headers == {
        "x-codex-tool-call-count": "1",
        "x-codex-tool-call-truncated": "true",
        "x-codex-stop-after-tools-mode": "first",
    }


def test_ids_are_new_for_every_answer_and_tell_what_they_name() -> None:
    events: list[Event] = [ReasoningDelta("A"), TextDelta("a"), CALL, END]
    bodies: list[dict[str, Any]] = []
    for _ in range(2):
        sink = ResponsesJson(ResponsesOptions())
        sink.feed(events)
        bodies.append(sink.result().body)
    ids = [item["id"] for found in bodies for item in found["output"]]
    assert len(set(ids)) == 6
    assert [own_id.partition("_")[0] for own_id in ids] == ["rs", "msg", "fc"] * 2


# -- around the events ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ResponsesSse, ResponsesMessages, ResponsesJson])
def test_a_turn_without_an_end_has_no_result(
    kind: type[ResponsesSse | ResponsesMessages | ResponsesJson],
) -> None:
    sink = kind(options())
    sink.feed([TextDelta("a")])
    assert not sink.finished
    with pytest.raises(UnfinishedTurnError, match="guard"):
        sink.result()


def test_a_burst_is_one_piece_of_the_stream_and_an_empty_one_adds_nothing() -> None:
    sink = ResponsesSse(options())
    first = sink.feed([TextDelta("a"), TextDelta("b")])
    assert sink.feed([ResponseEnd()]) == sink.feed([]) == b""
    last = sink.feed([TextDelta("c"), END])
    assert check_stream(first + last) == sink.answer.response
    assert first.count(b"event: ") == 6
    assert sink.result() is None


def test_a_body_is_written_by_its_result_alone() -> None:
    sink = ResponsesJson(options())
    assert sink.keepalive() + sink.feed([TextDelta("a"), END]) + sink.fail(DOWN.error) == b""
    assert sink.result().body["status"] == "completed"
    compacted = ResponsesJson(options())
    assert compacted.whole([ITEM]) == b""
    assert compacted.result().body["output"] == [ITEM]


def test_calls_are_known_in_the_order_they_were_written() -> None:
    for sink in (ResponsesSse(options()), ResponsesJson(options())):
        sink.feed([CALL, TextDelta("a"), SECOND, END])
        assert sink.call_ids == ("call_a", "call_b")


def messages(data: bytes) -> list[dict[str, Any]]:
    """What a socket sends: every line is a message."""
    *lines, rest = data.split(b"\n")
    assert rest == b""
    return [msgspec.json.decode(line) for line in lines]


def test_a_socket_gets_the_same_events_one_a_line() -> None:
    events: list[Event] = [ReasoningDelta("A"), TextDelta("a\n"), TextDelta("\r"), CALL, END]
    assert messages(ResponsesMessages(options()).feed(events)) == stream(*events)
    data = ResponsesSse(options()).whole([ITEM])
    assert messages(ResponsesMessages(options()).whole([ITEM])) == parse_stream(data)


def test_a_failing_socket_and_a_failing_stream_say_the_same() -> None:
    sse, socket = ResponsesSse(options()), ResponsesMessages(options())
    *same, error = parse_stream(sse.keepalive() + sse.fail(DOWN.error))
    assert same == messages(socket.keepalive() + socket.fail(DOWN.error))
    assert error["type"] == "error"  # on a socket it would be taken for the next answer
    assert sse.result() == socket.result() == DOWN.error
