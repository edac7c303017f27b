"""The Responses sinks: items, reasoning, and the shapes around them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from attrs import evolve

from pipeline.chain import Pipeline
from pipeline.events import (
    Event,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    TurnEnd,
)
from sinks.chat import UnfinishedTurnError
from sinks.responses import ResponsesOptions
from sinks.responses_json import ResponsesJson
from sinks.responses_sse import BARE, ResponsesEncoder, ResponsesMessages, ResponsesSse
from sources.replay import Listed
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


def test_sealed_reasoning_is_told_only_to_who_asks() -> None:
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
    sink.add([END])
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
    sink.add([CALL, TurnEnd("tool_calls", calls_truncated=True)])
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
        sink.add(events)
        bodies.append(sink.result().body)
    ids = [item["id"] for found in bodies for item in found["output"]]
    assert len(set(ids)) == 6
    assert [own_id.partition("_")[0] for own_id in ids] == ["rs", "msg", "fc"] * 2


async def test_the_sinks_refuse_a_turn_without_an_end() -> None:
    async def write(_: bytes) -> None:
        pass

    sinks = ResponsesSse(options(), write), ResponsesJson(options())
    for sink in (*sinks, ResponsesMessages(options(), write)):
        with pytest.raises(UnfinishedTurnError, match="guard"):
            await Pipeline().run(Listed([TextDelta("a")]), sink)


async def test_one_burst_is_one_write() -> None:
    writes: list[bytes] = []

    async def write(data: bytes) -> None:
        writes.append(data)

    sink = ResponsesSse(options(), write)
    source = Listed([TextDelta("a"), TextDelta("b")], [ResponseEnd()], [TextDelta("c"), END])
    assert await Pipeline().run(source, sink) is None
    assert len(writes) == 2
    assert check_stream(b"".join(writes)) == sink.answer.response


async def test_a_socket_gets_the_same_events_one_a_message() -> None:
    writes: list[bytes] = []

    async def write(data: bytes) -> None:
        writes.append(data)

    events: list[Event] = [ReasoningDelta("A"), TextDelta("a"), TextDelta("b"), CALL, END]
    await Pipeline().run(Listed(events), ResponsesMessages(options(), write))
    assert [msgspec.json.decode(message) for message in writes] == stream(*events)


async def test_a_failing_socket_and_a_failing_stream_say_the_same() -> None:
    async def write(_: bytes) -> None:
        pass

    sse, socket = ResponsesSse(options(), write), ResponsesMessages(options(), write)
    alive, dead = sse.keepalive(), sse.fail(DOWN.error)
    messages = [*socket.keepalive(), *socket.fail(DOWN.error)]
    *same, error = parse_stream(alive + dead)
    assert same == [msgspec.json.decode(message) for message in messages]
    assert error["type"] == "error"  # on a socket it would be taken for the next answer
    assert sse.result() == socket.result() == DOWN.error


def test_bare_frames_have_nothing_around_them() -> None:
    frames = ResponsesEncoder(options(), BARE).frames([TextDelta("a"), TextDelta("b"), END])
    kinds = [json.loads(frame)["type"] for frame in frames]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert kinds.count("response.output_text.delta") == 2
