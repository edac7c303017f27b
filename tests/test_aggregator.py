from __future__ import annotations

from typing import Any, Final, TypeAlias

import pytest

from pipeline.events import ToolCall
from pipeline.formats.use_tool import FindTool, WrittenCall
from pipeline.turn import Tool
from stages.tool_calls.aggregator import (
    ToolCallAggregator,
    ToolCallRecord,
    extract_blocks,
    extract_use_tool_blocks,
    to_obsidian_xml,
)
from stages.tool_calls.ids import CallIds
from stages.tool_calls.patterns import DEFAULT_PATTERNS, SENTINEL, USE_TOOL, TextPattern

Message: TypeAlias = dict[str, Any]

BLOCK: Final = "<use_tool><name>f</name><a>1</a></use_tool>"


def chat(index: int, arguments: str = "", **fields: Any) -> Message:
    """A chat delta with one piece of one call."""
    name = {"name": fields.pop("name")} if "name" in fields else {}
    function = name | {"arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function} | fields]}


def item(item_id: str, call_id: str, name: str, arguments: str = "") -> Message:
    fields = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"type": "function_call", "id": item_id} | fields


def added(item: Message) -> Message:
    return {"type": "response.output_item.added", "output_index": 0, "item": item}


def part_added(item_id: str, part: Message) -> Message:
    return {"type": "response.content_part.added", "item_id": item_id, "part": part}


def piece(item_id: str, delta: str) -> Message:
    return {"type": "response.function_call_arguments.delta", "item_id": item_id, "delta": delta}


def pieces_done(item_id: str, arguments: str) -> Message:
    kind = "response.function_call_arguments.done"
    return {"type": kind, "item_id": item_id, "arguments": arguments}


def item_done(item: Message) -> Message:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def gathered(*messages: Message) -> ToolCallAggregator:
    aggregator = ToolCallAggregator()
    for message in messages:
        aggregator.ingest_delta(message)
    return aggregator


def calls(aggregator: ToolCallAggregator) -> list[tuple[str, str, str]]:
    return [(call.call_id, call.name, call.arguments) for call in aggregator.snapshot()]


# -- chat deltas ---------------------------------------------------------------------------------


def test_chat_increments_are_gathered_by_index() -> None:
    aggregator = gathered(
        chat(0, id="c0", name="f"),
        chat(1, '{"b"', id="c1", name="g"),
        chat(0, '{"a":'),
        chat(1, ": 1.0}"),
        chat(0, "1}"),
    )
    assert calls(aggregator) == [("c0", "f", '{"a":1}'), ("c1", "g", '{"b": 1.0}')]


def test_a_whole_chat_chunk_is_taken_too() -> None:
    chunk = {"choices": [{"index": 0, "delta": chat(0, "{}", id="c0", name="f")}]}
    assert calls(gathered(chunk)) == [("c0", "f", "{}")]


def test_a_new_id_under_the_same_index_is_another_call() -> None:
    aggregator = gathered(chat(0, "{}", id="c0", name="f"), chat(0, "[", id="c1", name="g"))
    aggregator.ingest_delta(chat(0, "]"))
    assert calls(aggregator) == [("c0", "f", "{}"), ("c1", "g", "[]")]


def test_a_legacy_function_call_is_gathered() -> None:
    aggregator = gathered(
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a":'}},
        {"function_call": {"arguments": "1}"}},
    )
    [record] = aggregator.snapshot()
    assert (record.name, record.arguments) == ("f", '{"a":1}')
    assert record.call_id


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": "text"},
        {"tool_calls": None},
        {"tool_calls": []},
        {"tool_calls": [None]},
        {"tool_calls": "text"},
        {"function_call": None},
        {"choices": [None]},
        {"type": "response.output_text.delta", "delta": "text"},
        {"type": "response.output_item.added", "item": {"type": "message"}},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.output_item.done", "item": {"type": "message", "content": "text"}},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
    ],
    ids=str,
)
def test_what_holds_no_call_changes_nothing(message: Message) -> None:
    aggregator = ToolCallAggregator()
    assert not aggregator.ingest_delta(message).updated
    assert not aggregator.has_calls()


# -- Responses events and Codex items ------------------------------------------------------------


def test_responses_events_are_gathered_by_item() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(added(item("fc0", "c0", "f")))
    aggregator.ingest_delta(piece("fc0", '{"a":'))
    aggregator.ingest_delta(piece("fc0", "1.0}"))
    [record] = aggregator.snapshot()
    assert record == ToolCallRecord("c0", "f", '{"a":1.0}')
    aggregator.ingest_delta(pieces_done("fc0", '{"a":1.0}'))
    aggregator.ingest_delta(item_done(item("fc0", "c0", "f", '{"a":1.0}')))
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", '{"a":1.0}', complete=True),)


def test_the_last_word_replaces_what_was_gathered() -> None:
    aggregator = gathered(added(item("fc0", "c0", "f")), piece("fc0", '{"a":'))
    aggregator.ingest_delta(pieces_done("fc0", '{"a":2}'))
    assert calls(aggregator) == [("c0", "f", '{"a":2}')]


def test_a_last_word_without_arguments_keeps_what_was_gathered() -> None:
    done = item_done({"type": "function_call", "id": "fc0", "call_id": "c0"})
    aggregator = gathered(added(item("fc0", "c0", "f")), piece("fc0", "{}"), done)
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", "{}", complete=True),)


def test_arguments_may_come_before_the_name() -> None:
    aggregator = gathered(piece("fc0", '{"a"'), piece("fc0", ":1}"))
    aggregator.ingest_delta(added(item("fc0", "c0", "f")))
    assert calls(aggregator) == [("c0", "f", '{"a":1}')]


def test_even_all_the_arguments_may_come_before_the_name() -> None:
    aggregator = gathered(pieces_done("fc0", "{}"), added(item("fc0", "c0", "f")))
    assert calls(aggregator) == [("c0", "f", "{}")]


@pytest.mark.parametrize("kind", ["function_call", "function", "tool_use", "tool_call"])
@pytest.mark.parametrize(
    "named",
    [
        {"name": "f"},
        {"function_name": "f"},
        {"tool_name": "f"},
        {"call_name": "f"},
        {"function": {"name": "f"}},
        {"name": "", "tool_name": "f"},
    ],
    ids=str,
)
def test_a_content_part_is_a_call_whatever_its_type_and_wherever_its_name(
    kind: str, named: Message
) -> None:
    aggregator = gathered(part_added("m0", {"type": kind, "call_id": "c0"} | named))
    aggregator.ingest_delta(piece("m0", "{}"))
    assert calls(aggregator) == [("c0", "f", "{}")]


@pytest.mark.parametrize(
    "identified",
    [
        {"call_id": "c0"},
        {"call_id": "c0", "id": "other"},
        {"id": "c0"},
        {"function": {"id": "c0"}},
        {"call_id": None, "id": "c0"},
    ],
    ids=str,
)
def test_an_id_is_found_wherever_it_stands(identified: Message) -> None:
    part = {"type": "tool_use", "name": "f", "input": {"a": 1}} | identified
    assert calls(gathered(part_added("m0", part))) == [("c0", "f", '{"a":1}')]


def test_one_item_may_carry_several_calls() -> None:
    parts = [{"type": "tool_use", "call_id": f"c{n}", "name": name} for n, name in enumerate("fg")]
    aggregator = gathered(
        part_added("m0", parts[0]),
        piece("m0", "{}"),
        part_added("m0", parts[1]),
        piece("m0", "[]"),
        item_done({"type": "message", "id": "m0", "content": parts}),
    )
    assert aggregator.snapshot() == (
        ToolCallRecord("c0", "f", "{}", index=0, complete=True),
        ToolCallRecord("c1", "g", "[]", index=1, complete=True),
    )


@pytest.mark.parametrize(
    "message",
    [
        item("fc0", "c0", "f", '{"a": 1.0}'),
        {
            "method": "rawResponseItem/completed",
            "params": {"item": item("", "c0", "f", '{"a": 1.0}')},
        },
        {"type": "rawResponseItem/completed", "item": item("fc0", "c0", "f", '{"a": 1.0}')},
    ],
    ids=["item", "notification", "event"],
)
def test_a_raw_codex_item_is_a_whole_call(message: Message) -> None:
    aggregator = gathered(message, message)
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", '{"a": 1.0}', complete=True),)


# -- messages and text ---------------------------------------------------------------------------


def test_the_calls_of_a_message_are_whole() -> None:
    aggregator = ToolCallAggregator()
    named = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    ingested = aggregator.ingest_message({"tool_calls": named, "content": BLOCK})
    assert ingested.deltas == aggregator.snapshot()
    assert [(call.call_id, call.index, call.complete) for call in ingested.deltas] == [
        ("c0", 0, True),
        ("c1", 1, True),
    ]


def test_a_message_repeats_the_calls_that_were_streamed() -> None:
    aggregator = gathered(chat(0, "{}", id="c0", name="f"))
    repeated = {"id": "c0", "function": {"name": "f", "arguments": "{}"}}
    aggregator.ingest_message({"tool_calls": [repeated]})
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", "{}", complete=True),)


def test_a_message_with_a_legacy_call_is_taken() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_message({"function_call": {"name": "f", "arguments": '{"a":1}'}})
    [record] = aggregator.snapshot()
    assert (record.name, record.arguments, record.complete) == ("f", '{"a":1}', True)


@pytest.mark.parametrize(
    "content",
    [
        f"a {BLOCK} b",
        [{"type": "text", "text": "a "}, {"type": "text", "text": BLOCK}],
        ["a", BLOCK, None],
    ],
    ids=["string", "parts", "strings"],
)
def test_calls_in_the_text_count_if_asked_and_if_there_are_no_others(content: object) -> None:
    aggregator = ToolCallAggregator(seed="s")
    new = CallIds("s").make()
    message = {"role": "assistant", "content": content}
    assert not aggregator.ingest_message(message).updated
    assert aggregator.ingest_message(message, emit_if_missing=True).deltas == (
        ToolCallRecord(new, "f", '{"a":"1"}', origin="use_tool", complete=True),
    )
    assert not aggregator.ingest_message(message, emit_if_missing=True).updated


def test_the_schema_of_a_declared_tool_decides_in_text() -> None:
    tool = Tool("f", {"properties": {"a": {"type": "integer"}}})
    aggregator = ToolCallAggregator([tool])
    ingested = aggregator.ingest_message({"content": BLOCK}, emit_if_missing=True)
    assert [call.arguments for call in ingested.deltas] == ['{"a":1}']


def test_a_pattern_of_ones_own_is_looked_for_and_survives_a_reset() -> None:
    def read(block: str, _: FindTool) -> WrittenCall | None:
        return WrittenCall(block.removeprefix("<run>").removesuffix("</run>"), "{}")

    own = TextPattern("run", "<run>", "</run>", "fg", read)
    aggregator = ToolCallAggregator()
    assert list(aggregator.text_patterns) == [*DEFAULT_PATTERNS]
    aggregator.register_text_pattern(own)
    for _ in range(2):
        message = {"content": f"<run>g</run>{BLOCK}"}
        found = aggregator.ingest_message(message, emit_if_missing=True).deltas
        assert [(call.name, call.origin) for call in found] == [("g", "run"), ("f", "use_tool")]
        aggregator.reset_turn()
        assert list(aggregator.text_patterns) == [*DEFAULT_PATTERNS, own]


def test_a_pattern_with_a_known_name_replaces_the_old_one() -> None:
    def read_nothing(_: str, __: FindTool) -> None:
        return None

    aggregator = ToolCallAggregator()
    quiet = TextPattern("use_tool", USE_TOOL.opener, USE_TOOL.closer, "<", read_nothing)
    aggregator.register_text_pattern(quiet)
    assert aggregator.text_patterns == (SENTINEL, quiet)
    assert not aggregator.ingest_message({"content": BLOCK}, emit_if_missing=True).updated


def test_the_helpers_find_and_write_blocks() -> None:
    text = f'a {BLOCK} <use_tool><broken></use_tool> <tool_call>{{"name": "g"}}</tool_call>'
    assert extract_use_tool_blocks(text) == [WrittenCall("f", '{"a":"1"}')]
    assert extract_blocks(text, DEFAULT_PATTERNS) == [
        (USE_TOOL, WrittenCall("f", '{"a":"1"}')),
        (SENTINEL, WrittenCall("g", "{}")),
    ]
    xml = to_obsidian_xml(ToolCallRecord("c0", "f", '{"a":"1"}'))
    assert extract_use_tool_blocks(xml) == [WrittenCall("f", '{"a":"1"}')]
    assert xml == to_obsidian_xml(ToolCall("c0", "f", '{"a":"1"}'))


@pytest.mark.parametrize(("arguments", "told"), [("", "{}"), ('{"a": 1.0}', '{"a": 1.0}')])
def test_a_record_is_written_as_chat_completions_writes_it(arguments: str, told: str) -> None:
    assert ToolCallRecord("c0", "f", arguments).to_openai() == {
        "id": "c0",
        "type": "function",
        "function": {"name": "f", "arguments": told},
    }
