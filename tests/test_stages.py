"""The smaller stages, one table or sentence per rule."""

from __future__ import annotations

from typing import Literal

import pytest

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure
from pipeline.events import (
    BackendNotice,
    Event,
    Failed,
    ReasoningDelta,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    ToolOutput,
    TurnEnd,
)
from pipeline.ledger import Ledger
from pipeline.turn import Tool, Turn
from stages.aggregate_tool_calls import AggregateOptions, AggregateToolCalls
from stages.drop_mcp_noise import DropMcpNoise
from stages.guard_contract import RULES, GuardContract
from tests.support.stage_parts import END, USAGE, call, failure_code, through

# -- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output",
    [
        "resources/list failed: unknown MCP server 'obsidian'",
        "resources/templates/list failed: unknown MCP server 'x'",
        "resources/read failed: no such resource",
        "unknown MCP server 'x'",
    ],
)
def test_phantom_mcp_outputs_are_dropped(output: str) -> None:
    assert through(DropMcpNoise, ToolOutput("call_x", output), END) == [END]


@pytest.mark.parametrize(
    "name", ["list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource"]
)
def test_the_backends_own_calls_and_their_outputs_are_dropped(name: str) -> None:
    own = ToolCall("call_m", name, "{}")
    assert through(DropMcpNoise, own, ToolOutput("call_m", "fine"), END) == [END]


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("mcp__notes", "read"), (None, "mcp__notes__read"), ("web", "run")],
)
def test_calls_of_tools_that_an_operator_switched_on_are_the_backends_own(
    namespace: str | None, name: str
) -> None:
    own = ToolCall("call_m", name, "{}", namespace=namespace)
    assert through(DropMcpNoise, own, ToolOutput("call_m", "fine"), END) == [END]
    declared = Turn(tools=(Tool(name),))
    assert through(DropMcpNoise, own, END, turn=declared) == [own, END]


@pytest.mark.parametrize("namespace", [None, "functions", "website"])
def test_calls_of_anything_else_are_the_clients(namespace: str | None) -> None:
    other = ToolCall("call_o", "web", "{}", namespace=namespace)
    assert through(DropMcpNoise, other, END) == [other, END]


def test_a_client_that_declares_such_a_tool_gets_its_calls() -> None:
    own = ToolCall("call_m", "list_mcp_resources", "{}")
    turn = Turn(tools=(Tool("list_mcp_resources"),))
    assert through(DropMcpNoise, own, END, turn=turn) == [own, END]


@pytest.mark.parametrize("name_last", [False, True])
def test_streamed_pieces_of_the_backends_own_calls_are_dropped(name_last: bool) -> None:
    begun = ToolCallFragment("fc_1", "call_m", "list_mcp_resources")
    piece = ToolCallFragment("fc_1", whole='{"server":"x"}', done=True)
    other = ToolCallFragment("fc_2", "call_o", "s", whole="{}", done=True)
    turn = Turn(tools=(Tool("s"),))
    pieces = [piece, begun] if name_last else [begun, piece]
    output = ToolOutput("call_m", "whatever")
    out = recipe(Settings()).process([*pieces, other, output, ResponseEnd(), END], turn)
    assert [(e.name, e.index) for e in out if isinstance(e, ToolCall)] == [("s", 0)]
    assert output not in out


def test_start_up_notices_are_dropped_and_everything_else_passes() -> None:
    kept: list[Event] = [TextDelta("MCP"), ToolOutput("call_a", "ok"), call("a"), END]
    assert through(DropMcpNoise, BackendNotice("mcp", "ready"), *kept) == kept


def test_text_about_mcp_failures_is_the_models_own() -> None:
    text = TextDelta("resources/list failed: unknown MCP server 'obsidian'")
    assert through(DropMcpNoise, text, END) == [text, END]


# -- guard ---------------------------------------------------------------------------------------


def test_a_legal_stream_passes_untouched() -> None:
    events: list[Event] = [
        TextDelta("a"),
        ReasoningDelta("b"),
        call("a"),
        ToolOutput("call_a", ""),
        call("b", index=1),
        USAGE,
        ResponseEnd(),
        END,
    ]
    assert through(GuardContract, *events) == events


class Foreign:
    """Something a buggy stage might send."""

    at = 1.0


BROKEN: dict[str, list[object]] = {
    "one-choice": [TextDelta("a"), TextDelta("b", choice=1)],
    "dense-indices": [call("a"), call("b", index=2)],
    "unique-call-ids": [call("a"), call("a", index=1)],
    "whole-calls": [ToolCallFragment("fc_1", "call_a", "a")],
    "known-events": [Foreign()],
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_becomes_a_failure_that_names_it(rule: str) -> None:
    ledger = Ledger()
    events: list[object] = [*BROKEN[rule], TextDelta("more"), END]
    out = through(GuardContract, *events, ledger=ledger)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert isinstance(out[-2], Failed)
    assert out[-2].error.code == "contract_violation"
    assert rule in out[-2].error.message
    assert RULES[rule] in out[-2].error.message
    assert out[-1] == TurnEnd("failed", at=out[-1].at)
    assert ledger["stage"].dropped[f"contract: {rule}"] == 1


@pytest.mark.parametrize(
    "broken", [ToolCall("", "a", "{}"), ToolCall("c", "", "{}"), ToolCall("c", "a", "")]
)
def test_a_call_that_is_not_whole_never_passes(broken: ToolCall) -> None:
    assert failure_code(through(GuardContract, broken, END)) == "contract_violation"


def test_nothing_passes_after_the_end() -> None:
    assert through(GuardContract, TextDelta("a"), END, TextDelta("b"), END) == [TextDelta("a"), END]


def test_after_a_failure_only_the_end_passes() -> None:
    failed = Failed(Failure("down"))
    events: list[Event] = [failed, TextDelta("b"), failed, TurnEnd("failed")]
    assert through(GuardContract, *events) == [failed, TurnEnd("failed")]


def test_a_turn_that_never_ended_ends_as_a_failure() -> None:
    out = through(GuardContract, TextDelta("a"))
    assert failure_code(out) == "stream_ended_early"
    assert out[-1] == TurnEnd("failed")


def test_a_failed_turn_that_never_ended_keeps_its_failure() -> None:
    failed = Failed(Failure("down"))
    assert through(GuardContract, failed) == [failed, TurnEnd("failed")]


# -- choices and time of what was held -------------------------------------------------------------


def calls(turn: Turn, policy: Literal["text", "call", "fail"], *events: Event) -> list[Event]:
    return through(lambda: AggregateToolCalls(AggregateOptions(policy)), *events, turn=turn)


def test_held_text_keeps_its_choice_and_its_time() -> None:
    turn = Turn(tools=(Tool("f"),))
    first, second = TextDelta("<use", choice=0, at=6.0), TextDelta("x", choice=1, at=7.0)
    held = TextDelta("<use", choice=0, at=7.0)
    assert calls(turn, "text", first, second) == [held, second]
    assert calls(turn, "text", first) == [first]


def test_a_failure_belongs_to_the_choice_that_failed() -> None:
    block = TextDelta("<use_tool><name>g</name></use_tool>", choice=1, at=2.0)
    failed, end = calls(Turn(tools=(Tool("f"),)), "fail", block)
    assert (failed.choice, end.choice, end.at) == (1, 1, 2.0)
