from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.events import ToolCall, ToolCallFragment
from pipeline.turn import Tool
from stages.tool_calls.aggregator import AggregatorLimitError, ToolCallAggregator, ToolCallRecord

Message: TypeAlias = dict[str, Any]

law: Final = settings(deadline=None)
ADDED: Final = "response.output_item.added"
PIECE: Final = "response.function_call_arguments.delta"
PIECES_DONE: Final = "response.function_call_arguments.done"
ITEM_DONE: Final = "response.output_item.done"


def item(item_id: str, call_id: str, name: str, arguments: str = "") -> Message:
    fields = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"type": "function_call", "id": item_id} | fields


def chat(index: int, arguments: str = "", **fields: str) -> Message:
    function = {"arguments": arguments} | ({"name": "f"} if fields else {})
    return {"tool_calls": [{"index": index, "function": function} | fields]}


def part(key: str, call_id: str = "", arguments: str = "", **fields: Any) -> ToolCallFragment:
    return ToolCallFragment(key, call_id, arguments=arguments, **fields)


# -- pieces in any order -------------------------------------------------------------------------


@st.composite
def streamed_calls(draw: st.DrawFn) -> tuple[list[Message], dict[str, tuple[str, str]]]:
    """The events of two calls, interleaved, and what they amount to.

    Each call's arguments are cut anywhere, and its name comes anywhere before their end.
    """
    streams: list[list[Message]] = []
    expected: dict[str, tuple[str, str]] = {}
    for number, name in enumerate("fg"):
        key, call_id, text = f"fc{number}", f"c{number}", draw(st.text(max_size=12))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
        events: list[Message] = []
        events += [{"type": PIECE, "item_id": key, "delta": delta} for delta in pieces]
        named = draw(st.integers(0, len(events)))
        events.insert(named, {"type": ADDED, "item": item(key, call_id, name)})
        if draw(st.booleans()):
            events.append({"type": PIECES_DONE, "item_id": key, "arguments": text})
        events.append({"type": ITEM_DONE, "item": item(key, call_id, name, text)})
        streams.append(events)
        expected[call_id] = (name, text)
    turns = draw(st.permutations([0] * len(streams[0]) + [1] * len(streams[1])))
    return [streams[turn].pop(0) for turn in turns], expected


@law
@given(streamed_calls())
def test_neither_the_cuts_nor_the_interleaving_of_calls_matter(
    streamed: tuple[list[Message], dict[str, tuple[str, str]]],
) -> None:
    messages, expected = streamed
    aggregator = ToolCallAggregator()
    for message in messages:
        aggregator.ingest_delta(message)
    records = aggregator.snapshot()
    assert {call.call_id: (call.name, call.arguments) for call in records} == expected
    assert [call.index for call in records] == [0, 1]
    assert all(call.complete for call in records)


@law
@given(streamed_calls())
def test_looking_at_the_calls_does_not_change_them(
    streamed: tuple[list[Message], dict[str, tuple[str, str]]],
) -> None:
    messages, expected = streamed
    aggregator = ToolCallAggregator()
    for message in messages:
        aggregator.ingest_delta(message)
        aggregator.snapshot()
    found = {call.call_id: (call.name, call.arguments) for call in aggregator.snapshot()}
    assert found == expected


@law
@given(st.text(), st.lists(st.integers(0, 20), max_size=5))
def test_chat_arguments_may_be_cut_anywhere(text: str, cuts: list[int]) -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, id="c0"))
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(bounds):
        [record] = aggregator.ingest_delta(chat(0, text[start:end])).deltas
        assert record.arguments == text[:end]
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", text),)


# -- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_stays_as_it_was() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, "{", id="c0"))
    before = aggregator.snapshot()
    aggregator.ingest_delta(chat(0, "}"))
    aggregator.ingest_delta(chat(1, "[]", id="c1"))
    after = aggregator.snapshot()
    assert before == (ToolCallRecord("c0", "f", "{"),)
    assert after == (ToolCallRecord("c0", "f", "{}"), ToolCallRecord("c1", "f", "[]", index=1))


@pytest.mark.parametrize("field", ["call_id", "name", "arguments", "index", "complete"])
def test_a_record_cannot_be_changed(field: str) -> None:
    aggregator = ToolCallAggregator()
    [record] = aggregator.ingest_delta(chat(0, "{}", id="c0")).deltas
    with pytest.raises(AttributeError):
        setattr(record, field, "other")


def test_an_ingestion_tells_the_touched_calls_alone() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, "{", id="c0"))
    ingested = aggregator.ingest_delta(chat(1, "[", id="c1"))
    assert ingested.deltas == (ToolCallRecord("c1", "f", "[", index=1),)
    assert aggregator.ingest_delta(chat(0, "}")).deltas == (ToolCallRecord("c0", "f", "{}"),)


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": {"a": [1]}}}]},
        {"function_call": {"name": "f", "arguments": {"a": [1]}}},
        {"type": ADDED, "item": item("fc0", "c0", "f")},
        {"type": "message", "content": [{"type": "tool_use", "name": "f", "input": {"a": [1]}}]},
        {"content": [{"text": "<use_tool><name>f</name></use_tool>"}]},
    ],
    ids=["tool_calls", "function_call", "item", "parts", "text"],
)
def test_what_is_given_is_never_changed(message: Message) -> None:
    before = deepcopy(message)
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(message)
    aggregator.ingest_message(message, emit_if_missing=True)
    aggregator.finish()
    assert message == before


# -- choices and turns ---------------------------------------------------------------------------


def test_choices_do_not_see_each_other() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, "{", id="same"), choice=0)
    aggregator.ingest_delta(chat(0, "[", id="same"), choice=1)
    aggregator.ingest_delta(chat(0, "}"), choice=0)
    aggregator.ingest_delta(chat(0, "]"), choice=1)
    assert aggregator.snapshot(0) == (ToolCallRecord("same", "f", "{}"),)
    assert aggregator.snapshot(1) == (ToolCallRecord("same", "f", "[]", choice=1),)
    known = [aggregator.has_calls(choice) for choice in (None, 0, 1, 2)]
    assert known == [True, True, True, False]


@pytest.mark.parametrize(("choice", "left"), [(0, [1]), (1, [0]), (2, [0, 1]), (None, [])])
def test_a_reset_forgets_one_choice_or_all(choice: int | None, left: list[int]) -> None:
    aggregator = ToolCallAggregator()
    for number in range(2):
        aggregator.ingest_delta(chat(0, id=f"c{number}"), choice=number)
    aggregator.reset_turn(choice)
    assert [number for number in range(2) if aggregator.snapshot(number)] == left
    assert aggregator.has_calls() == bool(left)


def test_the_same_id_twice_is_one_call() -> None:
    aggregator = ToolCallAggregator()
    call = ToolCall("c0", "f", "{}")
    aggregator.add(call)
    aggregator.add(ToolCall("c0", "other", "[]"))
    aggregator.ingest_delta({"type": ITEM_DONE, "item": item("fc0", "c0", "g", "[]")})
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", "{}", complete=True),)
    assert aggregator.take_ready() == [call]
    aggregator.add(call)
    assert aggregator.take_ready() == []


def test_a_whole_call_is_the_last_word_on_its_pieces() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest([part("k0", "c0", '{"a"', name="f")])
    aggregator.add(ToolCall("c0", "f", '{"a":1}', item_id="i"))
    assert aggregator.take_ready() == [ToolCall("c0", "f", '{"a":1}', item_id="i")]


def test_whole_calls_are_numbered_in_the_order_they_come() -> None:
    aggregator = ToolCallAggregator()
    given = [ToolCall(f"c{n}", "f", "{}", item_id="i", namespace="n", at=1.0) for n in range(3)]
    for call in given:
        aggregator.add(call)
    assert aggregator.take_ready(at=1.0) == [
        ToolCall(f"c{n}", "f", "{}", index=n, item_id="i", namespace="n", at=1.0) for n in range(3)
    ]


def test_a_call_written_as_text_gets_an_id_of_its_own() -> None:
    written = ToolCallAggregator().ingest_message(
        {"content": "<use_tool><name>f</name></use_tool>" * 2}, emit_if_missing=True
    )
    assert len({call.call_id for call in written.deltas}) == 2


# -- giving out ----------------------------------------------------------------------------------


def test_a_call_is_given_out_once_and_none_before_an_earlier_one() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest(
        [part("k0", "c0", "{", name="f"), part("k1", "c1", "[]", name="g", done=True)]
    )
    assert aggregator.take_ready() == []
    aggregator.ingest([part("k0", arguments="}", done=True)])
    assert aggregator.take_ready(at=2.0) == [
        ToolCall("c0", "f", "{}", index=0, item_id="k0", at=2.0),
        ToolCall("c1", "g", "[]", index=1, item_id="k1", at=2.0),
    ]
    assert aggregator.take_ready() == []


def test_a_call_that_was_given_out_does_not_change_any_more() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest([part("k0", "c0", "{}", name="f", done=True)])
    assert len(aggregator.take_ready()) == 1
    assert not aggregator.ingest([part("k0", "c0", "more", done=True)])
    assert aggregator.snapshot() == (ToolCallRecord("c0", "f", "{}", complete=True),)


def test_the_end_of_a_response_completes_its_calls() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, "{}", id="c0"))
    assert aggregator.finish() == []
    assert aggregator.take_ready() == [ToolCall("c0", "f", "{}", item_id="index:0")]


def test_the_end_of_a_broken_response_drops_what_is_open_and_closes_the_gap() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest(
        [part("k0", "c0", "{", name="f"), part("k1", "c1", "[]", name="g", done=True)]
    )
    assert aggregator.finish(complete=False) == [ToolCallRecord("c0", "f", "{")]
    assert aggregator.snapshot() == (ToolCallRecord("c1", "g", "[]", complete=True),)


@pytest.mark.parametrize(
    ("tools", "named", "lost"),
    [
        pytest.param(["f"], ["f", "f", "f"], 0, id="the-only-tool"),
        pytest.param(["f", "g", "h"], ["f", "g", "h"], 0, id="by-position"),
        pytest.param(["f", "g"], ["f", "g"], 1, id="more-calls-than-tools"),
        pytest.param([], [], 3, id="no-tools"),
    ],
)
def test_a_missing_name_is_inferred_from_the_tools(
    tools: list[str], named: list[str], lost: int
) -> None:
    aggregator = ToolCallAggregator([Tool(name) for name in tools])
    for number in range(3):
        aggregator.ingest_delta({"type": PIECE, "item_id": f"fc{number}", "delta": "{}"})
    assert len(aggregator.finish()) == lost
    calls = aggregator.take_ready()
    assert [call.name for call in calls] == named
    assert all(call.call_id for call in calls)


def test_a_name_that_came_is_not_inferred() -> None:
    aggregator = ToolCallAggregator([Tool("f")])
    aggregator.ingest([part("k0", "c0", "{}", name="g", done=True)])
    aggregator.finish()
    assert [call.name for call in aggregator.take_ready()] == ["g"]


@pytest.mark.parametrize("ordinal", [-1, 0], ids=["streamed", "finished"])
def test_the_same_handle_in_two_responses_means_two_calls(ordinal: int) -> None:
    aggregator = ToolCallAggregator()
    for whole in ("{}", "[]"):
        aggregator.ingest([part("index:0", whole=whole, name="f", ordinal=ordinal)])
        aggregator.finish()
    assert [call.arguments for call in aggregator.take_ready()] == ["{}", "[]"]


def test_calls_that_share_a_handle_do_not_share_an_id() -> None:
    aggregator = ToolCallAggregator()
    for _ in range(2):
        aggregator.ingest([part("index:0", arguments="{}", name="f")])
        aggregator.finish()
    assert len({call.call_id for call in aggregator.take_ready()}) == 2


# -- limits --------------------------------------------------------------------------------------


def test_a_turn_with_too_many_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.tool_calls.aggregator.MOST_CALLS", 2)
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, id="c0"))
    aggregator.add(ToolCall("c1", "f", "{}"))
    with pytest.raises(AggregatorLimitError, match="more than 2 tool calls"):
        aggregator.ingest_delta(chat(2, id="c2"))
    with pytest.raises(AggregatorLimitError):
        aggregator.add(ToolCall("c3", "f", "{}"))
    aggregator.ingest_delta(chat(0, id="c0"), choice=1)


def test_arguments_that_grow_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.tool_calls.aggregator.LONGEST_ARGUMENTS", 4)
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(0, "ab", id="c0"))
    aggregator.ingest_delta(chat(0, "cd"))
    aggregator.ingest([part("k", "c1", whole="abcd"), part("k", "c1", whole="efgh")])
    with pytest.raises(AggregatorLimitError, match="arguments of one tool call"):
        aggregator.ingest_delta(chat(0, "e"))
    with pytest.raises(AggregatorLimitError):
        aggregator.ingest([part("k", "c1", whole="abcde")])
    with pytest.raises(AggregatorLimitError):
        aggregator.add(ToolCall("c2", "f", "abcde"))


def test_parts_of_one_item_are_told_apart_by_their_place() -> None:
    aggregator = ToolCallAggregator()
    for place, name in enumerate("fg"):
        part_added = {"type": "tool_use", "name": name, "input": {"n": place}}
        aggregator.ingest_delta(
            {
                "type": "response.content_part.added",
                "item_id": "m1",
                "content_index": place,
                "part": part_added,
            }
        )
    found = [(call.name, call.arguments) for call in aggregator.snapshot()]
    assert found == [("f", '{"n":0}'), ("g", '{"n":1}')]


def test_a_chunks_own_choice_is_the_calls() -> None:
    aggregator = ToolCallAggregator()
    delta = {"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f"}}]}
    aggregator.ingest_delta({"choices": [{"index": 1, "delta": delta}]})
    assert [len(aggregator.snapshot(choice)) for choice in range(2)] == [0, 1]


def test_a_legacy_call_streamed_and_then_told_whole_is_one() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"function_call": {"name": "f", "arguments": '{"a"'}})
    aggregator.ingest_message({"function_call": {"name": "f", "arguments": '{"a":1}'}})
    assert [call.arguments for call in aggregator.snapshot()] == ['{"a":1}']


def test_arguments_that_come_before_two_names_go_to_their_own_calls() -> None:
    aggregator = ToolCallAggregator()
    for arguments in ("{}", '{"a":1}'):
        aggregator.ingest_delta(
            {"type": "response.function_call_arguments.delta", "item_id": "i1", "delta": arguments}
        )
        aggregator.ingest_delta(
            {
                "type": "response.function_call_arguments.done",
                "item_id": "i1",
                "arguments": arguments,
            }
        )
    parts = [
        {"type": "tool_use", "id": "c1", "name": "s"},
        {"type": "tool_use", "id": "c2", "name": "z"},
    ]
    item_done = {"type": "message", "id": "i1", "content": parts}
    aggregator.ingest_delta({"type": ITEM_DONE, "item": item_done})
    found = [(call.call_id, call.name, call.arguments) for call in aggregator.snapshot()]
    assert found == [("c1", "s", "{}"), ("c2", "z", '{"a":1}')]
