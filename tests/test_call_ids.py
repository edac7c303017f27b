"""The ids of calls: kept where the model wrote a usable one, else the same in every replay."""

from __future__ import annotations

import re

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pipeline.assembly import Settings, recipe
from pipeline.events import Event, ResponseEnd, TextDelta, ToolCall, ToolCallFragment, TurnEnd
from pipeline.formats.use_tool import WrittenCall, read_json_call, read_sentinel, read_use_tool
from pipeline.turn import Tool, Turn
from stages.tool_calls.aggregator import ToolCallAggregator
from stages.tool_calls.ids import CallIds
from tests.support.aggregate_parts import KNOWN, TURN, play

MADE = re.compile(r"call_[0-9a-f]{24}")


def sentinel(call_id: str) -> str:
    return f'<tool_call>{{"id": "{call_id}", "name": "f", "arguments": {{}}}}</tool_call>'


def ids(text: str, turn: Turn = TURN) -> list[str]:
    return [call.call_id for call in play(TextDelta(text), TurnEnd(), turn=turn).calls]


# -- made ----------------------------------------------------------------------------------------


def test_an_id_that_is_made_is_a_literal_function_of_the_seed_the_choice_and_the_place() -> None:
    made = CallIds("resp_1")
    assert [made.make(), made.make(), made.make(1)] == [
        "call_55d953180ccc3596450b63fa",
        "call_e8c1e5c509049b66e9f001d9",
        "call_dd45d272dbf78696a3882df9",
    ]


@given(st.text(max_size=8), st.lists(st.integers(0, 3), max_size=20))
def test_ids_that_are_made_differ_and_are_the_same_again(seed: str, choices: list[int]) -> None:
    runs = [CallIds(seed) for _ in range(2)]
    made, again = ([run.make(choice) for choice in choices] for run in runs)
    assert made == again
    assert len(set(made)) == len(choices)
    assert all(MADE.fullmatch(one) for one in made)


@given(st.text(max_size=8), st.text(max_size=8))
def test_other_turns_get_other_ids(seed: str, other: str) -> None:
    assert (CallIds(seed).make() == CallIds(other).make()) == (seed == other)


def test_an_id_that_the_conversation_has_is_not_made_again() -> None:
    first, second = CallIds("s"), CallIds("s")
    taken = [first.make() for _ in range(3)]
    fresh = CallIds("s", taken).make()
    assert fresh not in taken
    assert [second.make() for _ in range(4)] == [*taken, fresh]


def test_the_choices_of_one_request_get_ids_of_their_own() -> None:
    turn = evolve(TURN, seed="chatcmpl-1")
    found = [ids(KNOWN, turn.for_choice(number))[0] for number in range(3)]
    assert len(set(found)) == 3
    assert turn.for_choice(0) is turn


def test_the_seed_is_no_part_of_what_was_asked() -> None:
    """A follow-up continues a held turn only if it asks for the same."""
    assert evolve(TURN, seed="a") == evolve(TURN, seed="b")


def test_a_turn_that_is_played_twice_gets_the_same_ids() -> None:
    begun = ToolCallFragment("k", name="f", arguments="{}")
    events: list[Event] = [TextDelta(KNOWN * 2), begun, ResponseEnd()]
    first, second = (play(*events, TurnEnd()).calls for _ in range(2))
    assert first == second
    assert len({call.call_id for call in first}) == 3
    assert all(MADE.fullmatch(call.call_id) for call in first)


def test_an_id_does_not_depend_on_the_calls_that_are_left_out() -> None:
    settings = Settings(tool_block_dedup=True, stop_after_tools=False)
    other = KNOWN.replace("1", "2")
    events: list[Event] = [TextDelta(KNOWN + KNOWN + other), TurnEnd()]
    kept = [e for e in recipe(settings).process(events, TURN) if isinstance(e, ToolCall)]
    every = ids(KNOWN + KNOWN + other)
    assert [call.call_id for call in kept] == [every[0], every[2]]


def test_an_aggregator_that_is_used_again_makes_no_id_twice() -> None:
    aggregator = ToolCallAggregator(seed="s")
    found: list[str] = []
    for _ in range(3):
        aggregator.add_written(WrittenCall("f", "{}", "own"), "sentinel")
        found += [call.call_id for call in aggregator.take_ready()]
        aggregator.reset_turn()
    assert found[0] == "own"
    assert len(set(found)) == 3


# -- kept ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own", ["call_abc123", "1", "x" * 64, "toolu_01-A.b:c/#", "a~!", "functions.f:0"]
)
def test_a_usable_id_of_the_sentinel_is_kept(own: str) -> None:
    assert ids(sentinel(own)) == [own]


@pytest.mark.parametrize(
    "bad", ["", "x" * 65, "two words", "é", "a\\nb", "\\u007f", "\\u0000", " "]
)
def test_an_id_that_clients_refuse_is_replaced(bad: str) -> None:
    (made,) = ids(sentinel(bad))
    assert MADE.fullmatch(made)


@pytest.mark.parametrize("written", ["7", "null", "[]", "{}", "true"])
def test_an_id_that_is_no_string_is_replaced(written: str) -> None:
    (made,) = ids(sentinel("x").replace('"x"', written))
    assert MADE.fullmatch(made)


def test_an_id_is_kept_once_in_a_turn() -> None:
    first, second, third = ids(sentinel("a") + sentinel("a") + sentinel("b"))
    assert (first, third) == ("a", "b")
    assert MADE.fullmatch(second)


@pytest.mark.parametrize("kind", ["function_call", "function_call_output", "custom_tool_call"])
def test_an_id_of_an_earlier_call_is_not_used_again(kind: str) -> None:
    turn = evolve(TURN, items=({"type": kind, "call_id": "a"}, {"type": "message"}))
    first, second = ids(sentinel("a") + sentinel("b"), turn)
    assert MADE.fullmatch(first)
    assert second == "b"


def test_an_id_of_a_structured_call_is_not_used_again() -> None:
    aggregator = ToolCallAggregator([Tool("f")])
    aggregator.add(ToolCall("a", "f", "{}"))
    aggregator.ingest([ToolCallFragment("k", "b", "f", whole="{}", done=True)])
    for own in ("a", "b", "c"):
        aggregator.add_written(WrittenCall("f", "{}", own), "sentinel")
    *_, first, second, third = [call.call_id for call in aggregator.take_ready()]
    assert MADE.fullmatch(first)
    assert MADE.fullmatch(second)
    assert third == "c"


@pytest.mark.parametrize(
    ("text", "call_id"),
    [
        ('{"name": "f"}', ""),
        ('{"type": "tool_call", "id": "a", "name": "f", "arguments": "{}"}', "a"),
        ('{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}', "a"),
        ('{"function": {"name": "f", "id": "b"}}', "b"),
        ('{"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f"}', "a"),
    ],
)
def test_the_id_is_read_wherever_models_write_it(text: str, call_id: str) -> None:
    assert read_json_call(text) == WrittenCall("f", "{}", call_id)
    assert read_sentinel(f"<tool_call>{text}</tool_call>") == WrittenCall("f", "{}", call_id)


def test_an_id_among_the_arguments_is_an_argument() -> None:
    call = read_use_tool("<use_tool><name>f</name><id>a</id></use_tool>")
    assert call == WrittenCall("f", '{"id":"a"}')
