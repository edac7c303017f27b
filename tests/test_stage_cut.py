"""How a turn is cut after its calls, and which of them are forwarded."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from pipeline.events import (
    CallProgress,
    Event,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolOutput,
    TurnEnd,
)
from pipeline.ledger import Ledger
from pipeline.turn import Turn
from stages.cap_tool_calls import CapToolCalls
from stages.cut_after_tools import TAIL, CutAfterTools
from stages.dedup_tool_calls import DedupToolCalls
from tests.stage_parts import END, USAGE, call, through

# -- cut -----------------------------------------------------------------------------------------


def cutter(
    stop: bool = True, mode: str = "burst", suppress_tail: bool = True
) -> Callable[[], CutAfterTools]:
    assert mode in ("burst", "first")
    first = mode == "first"
    return lambda: CutAfterTools(stop, "first" if first else "burst", 0.3, suppress_tail)


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


def test_reasoning_between_calls_stays_whole_and_in_its_place() -> None:
    hm, seal = ReasoningDelta("Hm.", item_id="rs_1"), ReasoningItem("rs_1", ("Hm.",), "sealed")
    out = through(cutter(), call("a"), hm, seal, call("b"), hm, seal, ResponseEnd())
    assert out == [call("a"), hm, seal, call("b"), ResponseEnd(), TurnEnd("tool_calls")]


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


@pytest.mark.parametrize(
    ("most", "turn", "left"),
    [
        (0, Turn(max_tool_calls=2), 2),
        (1, Turn(max_tool_calls=2), 1),
        (2, Turn(max_tool_calls=9), 2),
        (0, Turn(max_tool_calls=2, parallel_tool_calls=False), 1),
        (0, Turn(), 3),
    ],
)
def test_the_smallest_wish_for_calls_counts(most: int, turn: Turn, left: int) -> None:
    calls = [call(name, index=index) for index, name in enumerate("abc")]
    out = through(lambda: CapToolCalls(most), *calls, END, turn=turn)
    assert sum(isinstance(event, ToolCall) for event in out) == left
    (end,) = [event for event in out if isinstance(event, TurnEnd)]
    assert end.calls_truncated is (left < 3)


@pytest.mark.parametrize("turn", [Turn(parallel_tool_calls=False), Turn(legacy_functions=True)])
def test_a_request_with_room_for_one_call_gets_one(turn: Turn) -> None:
    out = through(lambda: CapToolCalls(3), call("a"), call("b", index=1), END, turn=turn)
    assert out == [call("a"), TurnEnd("completed", calls_truncated=True)]
