"""Calls made of text and of structured events, by one stage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Final

import pytest
from attrs import evolve

from pipeline.errors import Failure
from pipeline.events import (
    CallProgress,
    Event,
    Failed,
    ReasoningDelta,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.segment import Stages
from pipeline.turn import OutputMode, Tool, Turn
from stages.aggregate_tool_calls import AggregateOptions, AggregateToolCalls
from tests.support.aggregate_parts import (
    HALF,
    KNOWN,
    NAMELESS,
    POLICIES,
    SENTINEL,
    TURN,
    UNKNOWN,
    Policy,
    play,
)

# -- calls in text -------------------------------------------------------------------------------


def test_a_block_of_a_declared_tool_becomes_a_call_and_the_text_around_it_stays() -> None:
    played = play(TextDelta(f"a {KNOWN} b\n{SENTINEL}{KNOWN} c", item_id="m0", at=1.0), TurnEnd())
    first, second, third = played.calls
    assert played.events == [
        TextDelta("a ", item_id="m0", at=1.0),
        first,
        TextDelta(" b\n", item_id="m0", at=1.0),
        second,
        third,
        TextDelta(" c", item_id="m0", at=1.0),
        TurnEnd(),
    ]
    assert played.named == [("f", '{"a":"1"}'), ("g", '{"n": 1.0}'), ("f", '{"a":"1"}')]
    assert [call.origin for call in played.calls] == ["use_tool", "sentinel", "use_tool"]
    assert [call.index for call in played.calls] == [0, 1, 2]
    assert {call.at for call in played.calls} == {1.0}


@pytest.mark.parametrize(
    ("policy", "named", "text", "ends"),
    [
        ("text", [], f"a {UNKNOWN} b", ["stop"]),
        ("call", [("other", "{}")], "a  b", ["stop"]),
        ("fail", [], "a ", ["unknown_tool", "failed"]),
    ],
)
def test_the_policy_decides_on_a_block_of_an_undeclared_tool(
    policy: Policy, named: list[tuple[str, str]], text: str, ends: list[str]
) -> None:
    played = play(TextDelta(f"a {UNKNOWN} b"), TurnEnd(), policy=policy)
    assert (played.named, played.text, played.ends) == (named, text, ends)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_malformed_block_stays_text(policy: Policy) -> None:
    text = "a <use_tool><name>f</name>stray</use_tool> b"
    assert play(TextDelta(text), TurnEnd(), policy=policy).text == text


@pytest.mark.parametrize("policy", POLICIES)
def test_without_tools_the_text_is_untouched(policy: Policy) -> None:
    events: list[Event] = [TextDelta(KNOWN[:9]), TextDelta(KNOWN[9:]), ResponseEnd(), TurnEnd()]
    assert play(*events, policy=policy, turn=Turn()).events == events


@pytest.mark.parametrize(
    ("policy", "stage_mode", "turn_mode", "found"),
    [
        ("call", "openai-json", None, True),
        ("call", "auto", "obsidian-xml", True),
        ("call", "openai-json", "auto", False),
        ("text", "openai-json", "openai-json", False),
        ("text", "obsidian-xml", None, True),
        ("text", "auto", "obsidian-xml", True),
        ("text", "obsidian-xml", "auto", False),
        ("text", "obsidian-xml", "openai-json", False),
        ("text", "auto", None, False),
        ("call", "auto", None, False),
    ],
)
def test_without_tools_blocks_are_calls_only_if_a_mode_was_asked_for(
    policy: Policy, stage_mode: OutputMode, turn_mode: OutputMode | None, found: bool
) -> None:
    turn = Turn(output_mode=turn_mode)
    played = play(TextDelta(KNOWN), TurnEnd(), policy=policy, turn=turn, output_mode=stage_mode)
    assert bool(played.calls) == found


NO_TOOLS: Final = Turn(output_mode="obsidian-xml")


@pytest.mark.parametrize("policy", ["text", "call"])
@pytest.mark.parametrize(
    ("text", "left", "named"),
    [
        (f"a {KNOWN} b {SENTINEL}", "a  b ", [("f", '{"a":"1"}'), ("g", '{"n": 1.0}')]),
        (f"a\n```xml\n{KNOWN}\n```\nb {UNKNOWN}", None, [("other", "{}")]),
        (f"```\n{SENTINEL}\n```\n", None, []),
        ("<use_tool><name>f</name>stray</use_tool>", None, []),
        ("<use_tool><name>f</name>", None, []),
        (f"use `<use_tool>`, as in {KNOWN}", "use `<use_tool>`, as in ", [("f", '{"a":"1"}')]),
    ],
)
def test_a_client_of_obsidian_xml_that_declares_no_tools_gets_every_block_outside_a_fence_as_a_call(
    policy: Policy, text: str, left: str | None, named: list[tuple[str, str]]
) -> None:
    for parts in ([text], list(text)):
        played = play(*map(TextDelta, parts), TurnEnd(), turn=NO_TOOLS, policy=policy)
        assert played.named == named
        assert played.text == (text.replace(UNKNOWN, "") if left is None else left)


def test_a_policy_that_fails_unknown_tools_fails_them_in_obsidian_xml_too() -> None:
    played = play(TextDelta(f"a {KNOWN}"), TurnEnd(), turn=NO_TOOLS, policy="fail")
    assert (played.text, played.ends) == ("a ", ["unknown_tool", "failed"])
    example = f"```\n{KNOWN}\n```"
    assert play(TextDelta(example), TurnEnd(), turn=NO_TOOLS, policy="fail").text == example


@pytest.mark.parametrize(
    ("turn", "named"),
    [
        (evolve(TURN, output_mode="obsidian-xml"), [("f", '{"a":"1"}')]),
        (evolve(TURN, output_mode="obsidian-xml", tool_choice="none"), []),
    ],
)
def test_where_tools_are_declared_obsidian_xml_changes_nothing_about_what_is_a_call(
    turn: Turn, named: list[tuple[str, str]]
) -> None:
    played = play(TextDelta(f"{KNOWN} {UNKNOWN}"), TurnEnd(), turn=turn)
    assert played.named == named
    assert played.text == (f" {UNKNOWN}" if named else f"{KNOWN} {UNKNOWN}")


@pytest.mark.parametrize(("turn", "remarks"), [(NO_TOOLS, 0), (TURN, 1)])
def test_a_call_is_remarked_on_only_where_its_name_is_a_surprise(turn: Turn, remarks: int) -> None:
    stage = AggregateToolCalls(AggregateOptions("call"))
    stage.begin(turn)
    Stages([stage]).take([TextDelta(UNKNOWN)])
    assert len(stage.ledger.notes) == remarks


def test_text_without_a_tag_passes_as_it_is() -> None:
    events: list[Event] = [TextDelta("a", "m0"), ReasoningDelta("b"), TextDelta("c > d"), TurnEnd()]
    played = play(*events)
    assert all(passed is event for passed, event in zip(played.events, events, strict=True))


def test_progress_is_told_while_a_block_is_being_written() -> None:
    parts = ["a <use_tool>", "<name>f", "</name></use_tool>", "b"]
    played = play(*(TextDelta(part, at=float(at)) for at, part in enumerate(parts)))
    kinds = [TextDelta, CallProgress, CallProgress, ToolCall, TextDelta]
    assert [type(event) for event in played.events] == kinds
    assert [event.at for event in played.events] == [0.0, 0.0, 1.0, 2.0, 3.0]


def test_the_ids_of_written_calls_differ_within_and_across_turns() -> None:
    turns = [evolve(TURN, seed=seed) for seed in ("a", "b")]
    runs = [play(TextDelta(KNOWN * 2), TurnEnd(), turn=turn) for turn in turns]
    assert len({call.call_id for played in runs for call in played.calls}) == 4


@pytest.mark.parametrize("turn", [TURN, NO_TOOLS])
def test_a_stage_that_nobody_needs_any_more_is_gone_without_a_look_for_garbage(turn: Turn) -> None:
    stage = AggregateToolCalls()
    stage.begin(turn)
    stage.feed(TextDelta(f"```\n{SENTINEL}"))
    seen = weakref.ref(stage)
    gc.disable()
    try:
        del stage
        assert seen() is None
    finally:
        gc.enable()


# -- held text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ToolCall("c0", "f", "{}"),
        ToolCallFragment("k0", "c0", "f", "{"),
        ResponseEnd(),
        TurnEnd(),
        Failed(Failure("broken")),
        TextDelta("b", item_id="m1"),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("held", ["<use_to", "<use_tool><name>f</name>"])
def test_held_text_is_released_before_what_follows_it(event: Event, held: str) -> None:
    stage = AggregateToolCalls()
    stage.begin(TURN)
    stages = Stages([stage])
    assert TextDelta("a ", item_id="m0") in stages.take([TextDelta(f"a {held}", item_id="m0")])
    released = stages.take([event])
    assert released[0] == TextDelta(held, item_id="m0")
    assert stage.ledger.difference == 0


def test_held_text_is_released_when_the_input_ends() -> None:
    played = play(TextDelta("a <use_to", item_id="m0"))
    assert played.events == [TextDelta("a ", item_id="m0"), TextDelta("<use_to", item_id="m0")]


def test_a_block_in_held_text_counts_when_no_more_text_comes() -> None:
    played = play(TextDelta(f"<use_tool><name>f</name> {KNOWN}"), TurnEnd())
    assert played.text == "<use_tool><name>f</name> "
    assert played.named == [("f", '{"a":"1"}')]
    assert isinstance(played.events[-1], TurnEnd)


def test_no_block_spans_two_messages() -> None:
    played = play(TextDelta(KNOWN[:20], item_id="m0"), TextDelta(KNOWN[20:], item_id="m1"))
    assert (played.text, played.calls) == (KNOWN, [])


def test_released_text_stays_in_its_choice() -> None:
    played = play(TextDelta("<use_to", choice=1), TurnEnd(choice=1))
    assert played.events == [TextDelta("<use_to", choice=1), TurnEnd(choice=1)]


# -- structured calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["text", "call"])
@pytest.mark.parametrize("name", ["f", "other"])
def test_a_structured_call_passes_as_it_is(policy: Policy, name: str) -> None:
    call = ToolCall("c0", name, '{"n": 1.0}', item_id="i", namespace="n", at=1.0)
    assert play(call, TurnEnd(), policy=policy).events == [call, TurnEnd()]


def test_after_a_structured_call_blocks_stay_text() -> None:
    played = play(TextDelta(KNOWN), ToolCall("c0", "g", "{}"), TextDelta(KNOWN), TurnEnd())
    assert [call.name for call in played.calls] == ["f", "g"]
    assert [call.index for call in played.calls] == [0, 1]
    assert played.text == KNOWN


def test_the_same_call_again_is_left_out() -> None:
    call = ToolCall("c0", "f", "{}")
    played = play(call, call, ToolCall("c1", "f", "{}"), TurnEnd())
    assert played.events == [call, ToolCall("c1", "f", "{}", index=1), TurnEnd()]


def test_fragments_become_one_whole_call() -> None:
    played = play(
        ToolCallFragment("k0", "c0", "f"),
        ToolCallFragment("k1", "c1", "g", "[", at=1.0),
        ToolCallFragment("k1", arguments="]", done=True),
        ToolCallFragment("k0", arguments="{}"),
        ResponseEnd(at=2.0),
        TurnEnd(),
    )
    assert played.events == [
        *(CallProgress(), CallProgress(at=1.0), CallProgress(), CallProgress()),
        ToolCall("c0", "f", "{}", index=0, item_id="k0", at=2.0),
        ToolCall("c1", "g", "[]", index=1, item_id="k1", at=2.0),
        *(ResponseEnd(at=2.0), TurnEnd()),
    ]


def test_a_fragment_that_completes_its_call_gives_it_out_at_once_and_once() -> None:
    whole = ToolCallFragment("k0", "c0", "f", whole="{}", done=True)
    assert play(whole, whole).events == [ToolCall("c0", "f", "{}", item_id="k0")]


def test_a_whole_call_replaces_its_own_pieces() -> None:
    begun = ToolCallFragment("k0", "c0", "f", '{"a"')
    played = play(begun, ToolCall("c0", "f", '{"a":1}'), TurnEnd())
    assert played.named == [("f", '{"a":1}')]


@pytest.mark.parametrize("reason", ["max_output_tokens", "length", "failed", "interrupted"])
def test_a_call_that_was_cut_off_is_dropped_and_the_end_says_so(reason: str) -> None:
    played = play(
        ToolCallFragment("k0", "c0", "f", whole="{}", done=True),
        ToolCallFragment("k1", "c1", "g", '{"a'),
        TurnEnd(reason, at=1.0),
    )
    assert [call.call_id for call in played.calls] == ["c0"]
    assert played.events[-1] == TurnEnd(reason, call_incomplete=True, at=1.0)


def test_an_open_call_of_a_complete_turn_is_whole() -> None:
    played = play(ToolCallFragment("k0", "c0", "f", "{}"), TurnEnd("stop"))
    assert (played.named, played.events[-1]) == ([("f", "{}")], TurnEnd("stop"))


def test_an_end_without_an_open_call_is_left_as_it_is() -> None:
    end = TurnEnd("max_output_tokens")
    assert play(ToolCall("c0", "f", "{}"), end).events[-1] is end


def test_a_whole_call_whose_name_is_inferred_was_not_cut_off() -> None:
    turn = Turn(tools=(Tool("f"),))
    played = play(NAMELESS, TurnEnd("max_output_tokens"), turn=turn)
    assert (played.named, played.events[-1]) == ([("f", "{}")], TurnEnd("max_output_tokens"))


@pytest.mark.parametrize("reason", ["stop", "max_output_tokens"])
def test_calls_beside_an_open_one_are_numbered_in_order(reason: str) -> None:
    begun = ToolCallFragment("k0", "c0", "f", "{")
    played = play(begun, ToolCall("c1", "g", "{}"), TurnEnd(reason))
    assert [call.index for call in played.calls] == list(range(len(played.calls)))


# -- failing -------------------------------------------------------------------------------------

FAILING: Final[dict[str, tuple[Sequence[Event], Policy, Turn]]] = {
    "unknown-block": ([TextDelta(f"{UNKNOWN} a")], "fail", TURN),
    "unknown-call": ([ToolCall("c0", "other", "{}")], "fail", TURN),
    "unknown-fragment": ([ToolCallFragment("k0", "c0", "other", done=True)], "fail", TURN),
    "unknown-block-held-till-an-item": ([TextDelta(HALF), TextDelta("b", "m1")], "fail", TURN),
    "unknown-block-held-till-a-call": ([TextDelta(HALF), ToolCall("c0", "f", "")], "fail", TURN),
    "unknown-block-held-till-the-response": ([TextDelta(HALF), ResponseEnd()], "fail", TURN),
    "unknown-block-held-till-the-end": ([TextDelta(HALF)], "fail", TURN),
    "nameless-till-the-response": ([NAMELESS, ResponseEnd()], "text", Turn()),
    "nameless-till-the-end": ([NAMELESS], "text", Turn()),
    "long-call": ([TextDelta("<"), ToolCall("c0", "f", "x" * 101)], "text", TURN),
    "long-fragment": ([ToolCallFragment("k0", "c0", "f", "x" * 101)], "text", TURN),
    "long-block": ([TextDelta(KNOWN.replace("1", "x" * 101))], "text", TURN),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failure_ends_the_turn_and_nothing_follows(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.tool_calls.aggregator.LONGEST_ARGUMENTS", 100)
    events, policy, turn = FAILING[case]
    played = play(*events, TurnEnd(), policy=policy, turn=turn)
    codes = {"unknown": "unknown_tool", "nameless": "tool_call_without_name"}
    code = codes.get(case.split("-", maxsplit=1)[0], "too_much_output")
    assert played.ends == [code, "failed"]
    assert [type(event) for event in played.events[-2:]] == [Failed, TurnEnd]
    assert played.calls == []
