"""How a turn is cut after its calls, and which of them are forwarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import pytest

from pipeline.assembly import Settings, recipe
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
    TurnStart,
)
from pipeline.ledger import Ledger
from pipeline.turn import Tool, Turn
from stages.cap_tool_calls import CapOptions, CapToolCalls
from stages.cut_after_tools import TAIL, CutAfterTools, CutMode, CutOptions
from stages.dedup_tool_calls import DedupOptions, DedupToolCalls
from tests.support.stage_parts import END, USAGE, call, through

# -- cut -----------------------------------------------------------------------------------------


def cutter(
    stop: bool = True, mode: CutMode = "burst", suppress_tail: bool = True, grace_ms: int = 300
) -> Callable[[], CutAfterTools]:
    return partial(CutAfterTools, CutOptions(stop, mode, grace_ms, suppress_tail))


TOLD, UNTOLD, UNKNOWN = TurnStart("told"), TurnStart("untold"), TurnStart("unknown")


def names(events: Sequence[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, ToolCall)]


@pytest.mark.parametrize("start", [TOLD, UNTOLD, UNKNOWN])
def test_a_burst_ends_with_its_response(start: TurnStart) -> None:
    late = TextDelta("late", at=0.1)
    events: list[Event] = [start, call("a"), call("b"), USAGE, ResponseEnd(at=0.1), late, END]
    assert through(cutter(), *events) == [*events[:5], TurnEnd("tool_calls", at=0.1)]


@pytest.mark.parametrize("start", [UNTOLD, UNKNOWN])
def test_a_burst_ends_when_the_backend_answers_a_call_itself(start: TurnStart) -> None:
    output = ToolOutput("call_a", "unsupported call: a", at=0.1)
    out = through(cutter(), start, call("a"), output, TextDelta("narration"), END)
    assert out == [start, call("a"), output, TurnEnd("tool_calls", at=0.1)]


def test_where_the_end_is_told_an_output_is_not_the_end() -> None:
    output = ToolOutput("call_a", "unsupported call: a", at=0.1)
    out = through(cutter(), TOLD, call("a"), output, call("b", at=2.0), ResponseEnd(at=2.0))
    assert names(out) == ["a", "b"]


GAPS = (0.0, 0.2, 0.6, 2.0, 10.0)
WORK: dict[str, Callable[[float], list[Event]]] = {
    "silence": lambda _: [],
    "text": lambda at: [TextDelta("x", at=at)],
    "reasoning": lambda at: [ReasoningDelta("x", at=at), ReasoningItem("rs", at=at)],
    "a call being written": lambda at: [CallProgress(at=at)],
}


def slow_burst(calls: int, gap: float, work: str) -> list[Event]:
    """Calls with a gap before each and behind the last, and something at work in the middle."""
    events: list[Event] = []
    for number in range(calls):
        events += WORK[work](gap * (number + 0.5))
        events.append(call(f"t{number}", at=gap * (number + 1), index=number))
    return [*events, *WORK[work](gap * (calls + 0.5)), ResponseEnd(at=gap * (calls + 1))]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("calls", range(1, 9))
def test_no_timer_cuts_a_burst_whose_end_is_told(calls: int, gap: float, work: str) -> None:
    out = through(cutter(), TOLD, *slow_burst(calls, gap, work))
    assert names(out) == [f"t{number}" for number in range(calls)]
    assert out[-2:] == [
        ResponseEnd(at=gap * (calls + 1)),
        TurnEnd("tool_calls", at=gap * (calls + 1)),
    ]


@pytest.mark.parametrize(
    ("start", "second", "both"),
    [
        (UNTOLD, 0.29, True),
        (UNTOLD, 0.3, False),
        (UNTOLD, 5.0, False),
        (UNKNOWN, 4.99, True),
        (UNKNOWN, 5.0, False),
        (TOLD, 300.0, True),
    ],
)
def test_how_long_a_burst_waits_for_the_next_call(
    start: TurnStart, second: float, both: bool
) -> None:
    out = through(cutter(), start, call("a"), call("b", at=second), ResponseEnd(at=999.0))
    assert names(out) == (["a", "b"] if both else ["a"])
    assert isinstance(out[-1], TurnEnd)


def test_nothing_that_is_said_of_the_backend_means_that_nothing_is_known() -> None:
    events = [call("a"), call("b", at=4.9), call("c", at=9.9)]
    assert through(cutter(), *events)[:2] == events[:2]
    assert names(through(cutter(), *events)) == ["a", "b"]


def test_a_longer_grace_is_kept_where_nothing_is_known() -> None:
    patient = cutter(grace_ms=20_000)
    out = through(patient, UNKNOWN, call("a"), call("b", at=19.0), ResponseEnd(at=19.0))
    assert names(out) == ["a", "b"]


@pytest.mark.parametrize("work", [work for work in WORK if work != "silence"])
def test_what_the_model_writes_restarts_the_grace(work: str) -> None:
    written = [event for at in range(1, 10) for event in WORK[work](at / 5)]
    out = through(cutter(), UNTOLD, call("a"), *written, call("b", at=2.0), ResponseEnd(at=2.1))
    assert names(out) == ["a", "b"]
    assert not any(isinstance(event, CallProgress) for event in out)


@pytest.mark.parametrize(("written", "truncated"), [([CallProgress(at=0.1)], True), ([], False)])
def test_a_call_that_was_being_written_when_it_was_cut_is_told_of(
    written: list[Event], truncated: bool
) -> None:
    out = through(cutter(), UNTOLD, call("a"), *written, TextDelta("late", at=9.0))
    assert out[-1] == TurnEnd("tool_calls", calls_truncated=truncated, at=0.4 if written else 0.3)


@pytest.mark.parametrize(
    ("block", "truncated"),
    [
        ("<use_tool><name>unheard_of</name></use_tool>", False),
        ("<use_tool>is how tools are called</use_tool>", False),
        ("<use_tool><name>a</name>", True),
    ],
    ids=["of an undeclared tool", "no call", "half a call"],
)
def test_a_block_that_stays_text_is_no_call_that_was_cut(block: str, truncated: bool) -> None:
    first = TextDelta("<use_tool><name>a</name></use_tool>")
    letters = [TextDelta(letter, at=place / 100) for place, letter in enumerate(block, 1)]
    events: list[Event] = [UNTOLD, first, *letters, TextDelta("late", at=9.0)]
    out = recipe(Settings()).process(events, Turn(tools=(Tool("a"),)))
    assert names(out) == ["a"]
    *_, end = out
    assert isinstance(end, TurnEnd)
    assert (end.reason, end.calls_truncated) == ("tool_calls", truncated)


def test_each_call_restarts_the_grace() -> None:
    calls = [call("a", at=0.0), call("b", at=0.25), call("c", at=0.5)]
    assert through(cutter(), UNTOLD, *calls, ResponseEnd(at=0.6))[1:4] == calls


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


def dedup(enabled: bool = True) -> Callable[[], DedupToolCalls]:
    return partial(DedupToolCalls, DedupOptions(enabled))


def cap(most: int, *, stop: bool = True) -> Callable[[], CapToolCalls]:
    return partial(CapToolCalls, CapOptions(most), stop=stop)


def test_the_same_name_and_arguments_are_forwarded_once_and_numbered_anew() -> None:
    a, b, c = call("a"), ToolCall("call_x", "a", "{}", index=1), call("c", index=2)
    out = through(dedup(), a, b, c, END)
    assert out == [a, call("c", index=1), END]


@pytest.mark.parametrize("other", [ToolCall("call_x", "a", "{ }", 1), ToolCall("x", "b", "{}", 1)])
def test_other_arguments_or_another_name_make_another_call(other: ToolCall) -> None:
    assert through(dedup(), call("a"), other, END) == [call("a"), other, END]


def test_dedup_switched_off_passes_repeats() -> None:
    events: list[Event] = [call("a"), ToolCall("call_x", "a", "{}", index=1), END]
    assert through(dedup(False), *events) == events


@pytest.mark.parametrize("most", range(5))
def test_a_cap_of_n_means_n(most: int) -> None:
    calls = [call(letter, index=index) for index, letter in enumerate("abc")]
    out = through(cap(most, stop=False), *calls, END)
    kept = calls[: most or None]
    assert out == [*kept, TurnEnd("completed", calls_truncated=len(kept) < 3)]


def test_the_first_call_over_the_cap_ends_the_turn() -> None:
    late = TextDelta("late", at=9.0)
    calls = [call(letter, at=index, index=index) for index, letter in enumerate("abc")]
    out = through(cap(1), *calls, late, END)
    assert out == [calls[0], TurnEnd("tool_calls", calls_truncated=True, at=1.0)]


def test_a_cap_that_is_just_reached_cuts_nothing() -> None:
    events: list[Event] = [call("a"), TextDelta("and on"), END]
    assert through(cap(1), *events) == events


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
    out = through(cap(most), *calls, END, turn=turn)
    assert sum(isinstance(event, ToolCall) for event in out) == left
    (end,) = [event for event in out if isinstance(event, TurnEnd)]
    assert end.calls_truncated is (left < 3)


@pytest.mark.parametrize("turn", [Turn(parallel_tool_calls=False), Turn(legacy_functions=True)])
def test_a_request_with_room_for_one_call_gets_one(turn: Turn) -> None:
    out = through(cap(3), call("a"), call("b", index=1), END, turn=turn)
    assert out == [call("a"), TurnEnd("tool_calls", calls_truncated=True)]
