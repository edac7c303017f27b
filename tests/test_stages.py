"""The smaller stages, one table or sentence per rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

import pytest

from pipeline.chain import Pipeline
from pipeline.errors import Failure
from pipeline.events import (
    BackendNotice,
    CallProgress,
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
from pipeline.ledger import Ledger
from pipeline.settings import Settings
from pipeline.stage import Stage
from pipeline.turn import Tool, Turn
from stages.aggregate_tool_calls import AggregateToolCalls
from stages.cap_tool_calls import CapToolCalls
from stages.cut_after_tools import TAIL, CutAfterTools
from stages.dedup_tool_calls import DedupToolCalls
from stages.drop_mcp_noise import DropMcpNoise
from stages.guard_contract import RULES, GuardContract
from stages.reconcile_retries import ReconcileRetries


def through(
    stage: Callable[[], Stage],
    *events: Event,
    turn: Turn | None = None,
    ledger: Ledger | None = None,
) -> list[Event]:
    return Pipeline([("stage", stage)]).process(events, turn, ledger=ledger)


def call(letter: str, at: float = 0.0, index: int = 0, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call_{letter}", letter, arguments, index=index, at=at)


def failure_code(events: Sequence[Event]) -> str | None:
    return next((event.error.code for event in events if isinstance(event, Failed)), None)


END = TurnEnd("completed")

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
    out = Settings().pipeline().process([*pieces, other, output, ResponseEnd(), END], turn)
    assert [(e.name, e.index) for e in out if isinstance(e, ToolCall)] == [("s", 0)]
    assert output not in out


def test_start_up_notices_are_dropped_and_everything_else_passes() -> None:
    kept: list[Event] = [TextDelta("MCP"), ToolOutput("call_a", "ok"), call("a"), END]
    assert through(DropMcpNoise, BackendNotice("mcp", "ready"), *kept) == kept


def test_text_about_mcp_failures_is_the_models_own() -> None:
    text = TextDelta("resources/list failed: unknown MCP server 'obsidian'")
    assert through(DropMcpNoise, text, END) == [text, END]


# -- retries -------------------------------------------------------------------------------------


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["Hello par", None, "Hello par", "tial"], "Hello partial"),
        (["Hel", "lo", None, "H", "ello", " you"], "Hello you"),
        (["Hello", None, "Hello you"], "Hello you"),
        (["Hello", None, "Hello", None, "Hello you"], "Hello you"),
        (["Hello", None, "He", None, "Hello you"], "Hello you"),
        (["Hello", None, "Hello you", None, "Hello you too"], "Hello you too"),
        ([None, "Hello"], "Hello"),
        (["aa", None, "aa", "aa"], "aaaa"),
    ],
)
def test_a_retried_answer_is_read_once(pieces: list[str | None], text: str) -> None:
    events = [RetryNotice() if piece is None else TextDelta(piece) for piece in pieces]
    out = through(ReconcileRetries, *events, ResponseEnd(), END)
    assert text_of(out) == text
    assert failure_code(out) is None
    assert out[-1] == END


@pytest.mark.parametrize(
    "pieces",
    [
        ["Hello", None, "Help"],
        ["Hello", None, "Hell", "x"],
        ["Hello", None],
        ["Hello", None, "Hel"],
        ["a", None, "b"],
    ],
)
def test_a_second_answer_that_departs_fails_the_turn(pieces: list[str | None]) -> None:
    events = [RetryNotice() if piece is None else TextDelta(piece) for piece in pieces]
    out = through(ReconcileRetries, *events, ResponseEnd(), END)
    assert failure_code(out) == "answer_changed_on_retry"
    assert out[-1] == TurnEnd("failed")
    assert text_of(out) == pieces[0]


def test_calls_made_before_a_retry_are_forwarded_once() -> None:
    again = ToolCall("call_other_id", "a", "{}")
    out = through(ReconcileRetries, call("a"), RetryNotice(), again, call("b"), ResponseEnd(), END)
    assert [event.name for event in out if isinstance(event, ToolCall)] == ["a", "b"]


@pytest.mark.parametrize("second", [call("b"), call("a", arguments='{"x":1}')])
def test_another_call_after_a_retry_fails_the_turn(second: ToolCall) -> None:
    out = through(ReconcileRetries, call("a"), RetryNotice(), second, END)
    assert failure_code(out) == "answer_changed_on_retry"


def test_a_call_where_text_was_expected_fails_the_turn() -> None:
    out = through(ReconcileRetries, TextDelta("Hi"), RetryNotice(), call("a"), END)
    assert failure_code(out) == "answer_changed_on_retry"
    assert not any(isinstance(event, ToolCall) for event in out)


def test_a_turn_that_ends_before_its_second_answer_caught_up_fails() -> None:
    out = through(ReconcileRetries, TextDelta("Hello"), RetryNotice(), TextDelta("Hel"), END)
    assert failure_code(out) == "answer_changed_on_retry"


def test_a_block_that_a_retry_tells_under_another_id_is_one_call() -> None:
    block = "Hm. <use_tool><name>s</name><q>hello</q></use_tool>"
    turn = Turn(tools=(Tool("s"),))
    for cut in range(len(block)):
        events: list[Event] = [
            TextDelta(block[:cut] or "H", "m1"),
            RetryNotice(),
            TextDelta(block[:30], "m2"),
            TextDelta(block[30:], "m2"),
            END,
        ]
        out = Settings().pipeline().process(events, turn)
        assert [e.arguments for e in out if isinstance(e, ToolCall)] == ['{"q":"hello"}']
        assert text_of(out) == "Hm. "


def test_reasoning_that_departs_is_left_out_and_the_answer_goes_on() -> None:
    out = through(
        ReconcileRetries,
        ReasoningDelta("so "),
        RetryNotice(),
        ReasoningDelta("hm"),
        TextDelta("42"),
        ResponseEnd(),
        END,
    )
    assert [event.text for event in out if isinstance(event, ReasoningDelta)] == ["so "]
    assert text_of(out) == "42"


def test_a_sealed_item_is_sent_once() -> None:
    sealed = ReasoningItem("rs_1", (), "gAAA")
    out = through(ReconcileRetries, sealed, RetryNotice(), sealed, ResponseEnd(), END)
    assert out.count(sealed) == 1


def test_a_failure_after_a_retry_is_that_failure() -> None:
    failed = Failed(Failure("down", code="upstream_error"))
    out = through(ReconcileRetries, TextDelta("Hi"), RetryNotice(), failed, TurnEnd("failed"))
    assert out == [TextDelta("Hi"), failed, TurnEnd("failed")]


def test_a_later_response_may_say_the_same_again() -> None:
    out = through(ReconcileRetries, TextDelta("a"), ResponseEnd(), RetryNotice(), TextDelta("a"))
    assert text_of(out) == "aa"


# -- cut -----------------------------------------------------------------------------------------


def cutter(
    stop: bool = True, mode: str = "burst", suppress_tail: bool = True
) -> Callable[[], CutAfterTools]:
    assert mode in ("burst", "first")
    first = mode == "first"
    return lambda: CutAfterTools(stop, "first" if first else "burst", 0.3, suppress_tail)


USAGE = Usage(1, 2, 3)


def test_a_burst_ends_with_its_response() -> None:
    late = TextDelta("late", at=0.1)
    events: list[Event] = [call("a"), call("b"), USAGE, ResponseEnd(at=0.1), late, END]
    assert through(cutter(), *events) == [*events[:4], TurnEnd("tool_calls", at=0.1)]


def test_a_burst_ends_when_the_backend_answers_a_call_itself() -> None:
    output = ToolOutput("call_a", "unsupported call: a", at=0.1)
    out = through(cutter(), call("a"), output, TextDelta("narration"), END)
    assert out == [call("a"), output, TurnEnd("tool_calls", at=0.1)]


@pytest.mark.parametrize(
    ("second", "both"), [(0.29, True), (0.3, False), (5.0, False)], ids=["in", "at", "after"]
)
def test_a_burst_waits_its_grace_for_the_next_call(second: float, both: bool) -> None:
    out = through(cutter(), call("a", at=0.0), call("b", at=second), ResponseEnd(at=9.0))
    assert (call("b", at=second) in out) == both
    assert isinstance(out[-1], TurnEnd)


def test_each_call_restarts_the_grace() -> None:
    calls = [call("a", at=0.0), call("b", at=0.25), call("c", at=0.5)]
    assert through(cutter(), *calls, ResponseEnd(at=0.6))[:3] == calls


def test_text_does_not_restart_the_grace() -> None:
    words = [TextDelta("x", at=at / 10) for at in range(1, 5)]
    out = through(cutter(), call("a"), *words, call("b", at=0.5), ResponseEnd(at=0.6))
    assert out == [call("a"), TurnEnd("tool_calls", at=0.3)]


def test_a_call_that_is_being_written_is_waited_for() -> None:
    progress = [CallProgress(at=at / 10) for at in range(1, 10)]
    out = through(cutter(), call("a"), *progress, call("b", at=1.0), ResponseEnd(at=1.1))
    assert [event.name for event in out if isinstance(event, ToolCall)] == ["a", "b"]
    assert not any(isinstance(event, CallProgress) for event in out)


def test_before_the_first_call_nothing_is_held_or_timed() -> None:
    stage = CutAfterTools()
    assert stage.feed(TextDelta("a")) == (TextDelta("a"),)
    assert list(stage.feed(CallProgress(at=1.0))) == []
    assert stage.deadline == inf


def test_first_mode_ends_with_the_first_call() -> None:
    out = through(cutter(mode="first"), TextDelta("x"), call("a", at=1.0), call("b"), END)
    assert out == [TextDelta("x"), call("a", at=1.0), TurnEnd("tool_calls", at=1.0)]


def test_text_between_calls_stays_and_narration_behind_them_goes() -> None:
    ledger = Ledger()
    between, behind = TextDelta("and"), TextDelta("Done soon.")
    out = through(cutter(), call("a"), between, call("b"), behind, ResponseEnd(), ledger=ledger)
    assert out == [call("a"), between, call("b"), ResponseEnd(), TurnEnd("tool_calls")]
    assert ledger["stage"].dropped[TAIL] == 1


def test_without_the_cut_everything_but_the_tail_passes() -> None:
    output = ToolOutput("call_a", "x")
    events: list[Event] = [call("a"), ResponseEnd(), output, TextDelta("tail"), END]
    assert through(cutter(stop=False), *events) == [*events[:3], END]


def test_without_cut_and_suppression_everything_passes_at_once() -> None:
    events: list[Event] = [call("a"), TextDelta("b"), call("c"), ReasoningDelta("d"), END]
    assert through(cutter(stop=False, suppress_tail=False), *events) == events


def test_a_turn_without_calls_passes_untouched() -> None:
    events: list[Event] = [TextDelta("a"), USAGE, ResponseEnd(), ToolOutput("c", "x"), END]
    assert through(cutter(), *events) == events


# -- dedup and cap -------------------------------------------------------------------------------


def test_the_same_name_and_arguments_are_forwarded_once_and_numbered_anew() -> None:
    a, b, c = call("a"), ToolCall("call_x", "a", "{}", index=1), call("c", index=2)
    out = through(DedupToolCalls, a, b, c, END)
    assert out == [a, call("c", index=1), END]


@pytest.mark.parametrize("other", [ToolCall("call_x", "a", "{ }", 1), ToolCall("x", "b", "{}", 1)])
def test_other_arguments_or_another_name_make_another_call(other: ToolCall) -> None:
    assert through(DedupToolCalls, call("a"), other, END) == [call("a"), other, END]


def test_dedup_switched_off_passes_repeats() -> None:
    events: list[Event] = [call("a"), ToolCall("call_x", "a", "{}", index=1), END]
    assert through(lambda: DedupToolCalls(enabled=False), *events) == events


@pytest.mark.parametrize("most", range(5))
def test_a_cap_of_n_means_n(most: int) -> None:
    calls = [call(letter, index=index) for index, letter in enumerate("abc")]
    out = through(lambda: CapToolCalls(most), *calls, END)
    kept = calls[: most or None]
    assert out == [*kept, TurnEnd("completed", calls_truncated=len(kept) < 3)]


@pytest.mark.parametrize("turn", [Turn(parallel_tool_calls=False), Turn(legacy_functions=True)])
def test_a_request_with_room_for_one_call_gets_one(turn: Turn) -> None:
    out = through(lambda: CapToolCalls(3), call("a"), call("b", index=1), END, turn=turn)
    assert out == [call("a"), TurnEnd("completed", calls_truncated=True)]


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
    return through(lambda: AggregateToolCalls(policy), *events, turn=turn)


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
