"""Calls that the model made and that no client gets: the turn's end tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.errors import Failure, ProxyError
from pipeline.events import (
    Event,
    Failed,
    LostCall,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.recipe import Pipeline
from pipeline.segment import Stages, without_ticks
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson, ChatOptions, ChatSse
from sinks.responses import ResponsesAnswer, ResponsesJson, ResponsesOptions
from sources.decode.turn_decoder import TurnDecoder
from stages.guard_contract import GuardContract
from stages.tool_calls.aggregator import ToolCallAggregator
from tests.support.aggregate_parts import HALF, KNOWN, POLICIES, UNKNOWN, Policy, play

TWO = Turn(tools=(Tool("f"), Tool("g")))
ONE = Turn(tools=(Tool("f"),))
GOOD = ToolCall("call_good", "f", "{}")
OPEN = ToolCallFragment("k", "call_open", "g", arguments='{"a": ')
DOWN = Failed(Failure("down", 502, code="upstream_error"))
STARTED = {"method": "turn/started", "params": {"threadId": "T", "turn": {"id": "0"}}}
COMPLETED = {
    "method": "turn/completed",
    "params": {"threadId": "T", "turn": {"id": "0", "status": "completed"}},
}
RESPONSE_ENDED = {
    "method": "rawResponse/completed",
    "params": {"threadId": "T", "turnId": "0", "responseId": "r"},
}


def raw(**item: Any) -> dict[str, Any]:
    item = {"type": "function_call", **item}
    params = {"threadId": "T", "turnId": "0", "item": item}
    return {"method": "rawResponseItem/completed", "params": params}


def item_done(**item: Any) -> dict[str, Any]:
    item = {"type": "function_call", **item}
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def decoded(*messages: object) -> list[Event]:
    decoder = TurnDecoder()
    return [event for message in messages for event in decoder.feed(message)]


def out_of(events: Sequence[Event], turn: Turn = TWO, **flags: Any) -> list[Event]:
    return list(assembly.recipe(Settings(**flags)).process(events, turn))


def truncated(events: Sequence[Event]) -> bool:
    """Whether the end tells of it, and a failure before it tells the same."""
    *_, end = events
    assert isinstance(end, TurnEnd)
    told = end.calls_truncated or end.call_incomplete
    for event in events:
        assert not isinstance(event, LostCall)
        assert not isinstance(event, Failed) or event.calls_truncated is told
    return told


def names(events: Sequence[Event]) -> list[str]:
    return [event.call_id for event in events if isinstance(event, ToolCall)]


# -- calls that the decoder cannot read ------------------------------------------------------------

NAMELESS = raw(call_id="call_x", arguments="{}")
UNREADABLE = raw(call_id="call_x", name="g", arguments=5)
READABLE = raw(call_id="call_good", name="f", arguments="{}")


@pytest.mark.parametrize("lost", [NAMELESS, raw(name="f", arguments="{}"), UNREADABLE])
@pytest.mark.parametrize("stop", [True, False], ids=["cut", "not cut"])
@pytest.mark.parametrize("place", [0, 1], ids=["before", "after"])
def test_a_call_that_cannot_be_read_is_told_by_the_end_whoever_makes_it(
    lost: dict[str, Any], stop: bool, place: int
) -> None:
    messages = [READABLE]
    messages.insert(place, lost)
    events = decoded(STARTED, *messages, RESPONSE_ENDED, COMPLETED)
    out = out_of(events, stop_after_tools=stop)
    assert names(out) == ["call_good"]
    assert truncated(out)


@pytest.mark.parametrize("lost", [NAMELESS, UNREADABLE])
def test_a_call_that_cannot_be_read_is_told_though_it_is_the_only_one(lost: dict[str, Any]) -> None:
    out = out_of(decoded(STARTED, lost, RESPONSE_ENDED, COMPLETED))
    assert names(out) == []
    assert truncated(out)


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": ""}])
def test_a_call_without_arguments_is_a_call(arguments: dict[str, Any]) -> None:
    call = raw(call_id="call_a", name="f", **arguments)
    out = out_of(decoded(STARTED, call, RESPONSE_ENDED, COMPLETED))
    assert [event.arguments for event in out if isinstance(event, ToolCall)] == ["{}"]
    assert not truncated(out)


def test_a_finished_item_that_cannot_be_read_ends_the_call_that_it_began() -> None:
    begun = {**item_done(id="fc", call_id="c", name="f"), "type": "response.output_item.added"}
    wrong = item_done(id="fc", call_id="c", name="f", arguments=5)
    ended = {"type": "response.completed", "response": {"id": "r"}}
    out = out_of(decoded(begun, wrong, ended))
    assert names(out) == []
    assert truncated(out)


def test_a_call_that_was_told_in_a_readable_form_before_is_not_lost() -> None:
    right = item_done(id="fc", call_id="c", name="f", arguments="{}")
    wrong = item_done(id="fc", call_id="c", name="f", arguments=5)
    ended = {"type": "response.completed", "response": {"id": "r"}}
    out = out_of(decoded(right, wrong, ended), stop_after_tools=False)
    assert names(out) == ["c"]
    assert not truncated(out)


def test_a_nameless_call_of_the_only_tool_is_forwarded_and_not_lost() -> None:
    ended = {"type": "response.completed", "response": {"id": "r"}}
    out = out_of(decoded(item_done(id="fc", call_id="c", arguments="{}"), ended), ONE)
    assert [(e.name, e.call_id) for e in out if isinstance(e, ToolCall)] == [("f", "c")]
    assert not truncated(out)


def test_a_call_of_history_that_comes_back_is_not_lost() -> None:
    decoder = TurnDecoder(known_calls=frozenset({"call_x"}))
    events = [
        event for message in (NAMELESS, STARTED, COMPLETED) for event in decoder.feed(message)
    ]
    assert not truncated(out_of(events))


# -- calls that were cut off, or had no room -------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        (OPEN, TurnEnd("max_output_tokens")),
        (OPEN, DOWN, TurnEnd("failed")),
        (GOOD, OPEN, DOWN, TurnEnd("failed")),
        (OPEN, TurnEnd("interrupted")),
        (OPEN,),
        (TextDelta("<use_tool><name>f</name>"), DOWN, TurnEnd("failed")),
        (TextDelta("<use_tool><name>f</name>"),),
        (GOOD, ToolCall("call_b", "g", "{}", 1), TurnEnd()),
    ],
    ids=[
        "limit",
        "failure",
        "failure after a call",
        "interrupted",
        "stream broke off",
        "a block, failure",
        "a block, stream broke off",
        "over the cap",
    ],
)
def test_a_call_that_was_not_forwarded_for_lack_of_room_or_time_is_told(
    events: Sequence[Event],
) -> None:
    assert truncated(out_of(events, tool_block_max=1, stop_after_tools=False))


def test_a_call_of_any_choice_is_told_when_the_stream_breaks_off() -> None:
    out = out_of([evolve(OPEN, choice=3, at=5.0)])
    assert truncated(out)
    failed, end = out
    assert isinstance(failed, Failed)
    assert failed.error.code == "stream_ended_early"
    assert (end.choice, end.at) == (3, 5.0)


def test_a_nameless_call_that_nothing_explains_fails_the_turn_and_is_told() -> None:
    nameless = [ToolCallFragment(f"k{n}", f"c{n}", whole="{}", done=True) for n in range(3)]
    out = out_of([GOOD, *nameless, ResponseEnd(), TurnEnd()], stop_after_tools=False)
    assert truncated(out)


@pytest.mark.parametrize(
    "events",
    [
        (TextDelta("Hi"), TurnEnd()),
        (TextDelta("Hi"), DOWN, TurnEnd("failed")),
        (TextDelta("Hi"),),
        (GOOD, TurnEnd()),
        (GOOD, ToolCall("call_b", "f", "{}", 1), TurnEnd()),
        (TextDelta("<use_tool><name>other</name></use_tool>"), TurnEnd()),
    ],
    ids=["text", "failure", "stream broke off", "one call", "duplicate", "block that stays text"],
)
def test_nothing_is_told_where_no_call_is_missing(events: Sequence[Event]) -> None:
    assert not truncated(out_of(events))


def test_a_call_that_policy_refuses_is_not_lost() -> None:
    other = ToolCall("c", "other", "{}")
    assert not truncated(out_of([other, TurnEnd()], unknown_tool_policy="fail"))


PIECES = st.sampled_from([KNOWN, UNKNOWN, HALF, "a", "<use_tool>"]).map(TextDelta)
LOST = st.builds(LostCall, st.just("nameless"), st.sampled_from(["", "k0", "call_open"]))


@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(PIECES | LOST | st.sampled_from([OPEN, GOOD]), max_size=6))
def test_nothing_follows_an_end_that_the_stage_makes(policy: Policy, events: list[Event]) -> None:
    out = play(*events, policy=policy).events  # which checks the books
    assert all(not isinstance(event, TurnEnd) for event in out[:-1])


# -- the guard -------------------------------------------------------------------------------------

ENDS = st.sampled_from(
    [(), (TurnEnd(),), (DOWN, TurnEnd("failed")), (TurnEnd(calls_truncated=True),)]
)


@given(st.lists(st.sampled_from([TextDelta("a"), LostCall("nameless")]), max_size=6), ENDS)
def test_the_guard_lets_no_lost_call_out_and_every_end_tells_of_it(
    events: list[Event], ends: tuple[Event, ...]
) -> None:
    guard = GuardContract()
    stages = Stages([guard])
    fed = [*events, *ends]
    out = [*without_ticks(stages.take(fed)), *stages.close()]
    assert guard.ledger.difference == 0
    lost = any(isinstance(event, LostCall) for event in events)
    assert truncated(out) is (lost or TurnEnd(calls_truncated=True) in ends)


def test_an_end_that_a_later_stage_makes_does_not_hide_a_lost_call() -> None:
    recipe: Pipeline = assembly.recipe(Settings())
    out = list(recipe.process([LostCall("nameless"), GOOD, ResponseEnd()], TWO))
    assert out[-1] == TurnEnd("tool_calls", calls_truncated=True)


def test_the_aggregator_forgets_a_call_and_numbers_the_others_anew() -> None:
    aggregator = ToolCallAggregator(TWO.tools)
    aggregator.ingest([ToolCallFragment("a", "c_a", "f"), ToolCallFragment("b", "c_b", "g")])
    assert aggregator.lose("a")
    assert aggregator.finish() == []
    assert [(call.call_id, call.index) for call in aggregator.take_ready()] == [("c_b", 0)]
    assert aggregator.lose("never heard of")


# -- what clients and logs are told ----------------------------------------------------------------

INCOMPLETE = TurnEnd("max_output_tokens", call_incomplete=True)


@pytest.mark.parametrize("end", [INCOMPLETE, TurnEnd(calls_truncated=True)])
def test_both_apis_tell_it_in_their_headers(end: TurnEnd) -> None:
    chat = ChatJson(ChatOptions())
    chat.feed([GOOD, end])
    responses = ResponsesJson(ResponsesOptions())
    responses.feed([GOOD, end])
    for headers in (chat.result().headers, responses.result().headers):
        assert headers["x-codex-tool-call-truncated"] == "true"


@pytest.mark.parametrize("end", [INCOMPLETE, TurnEnd(calls_truncated=True)])
def test_the_last_comment_of_a_chat_stream_tells_it(end: TurnEnd) -> None:
    data = ChatSse(ChatOptions(declares_tools=True)).feed([TextDelta("a"), end])
    assert b': {"tool_call_count":0,"tool_call_truncated":true,' in data


def test_a_failure_tells_it_to_those_who_read_no_further() -> None:
    failed = Failed(DOWN.error, calls_truncated=True)
    chat = ChatSse(ChatOptions())
    with pytest.raises(ProxyError):
        chat.feed([failed])
    responses = ResponsesAnswer(ResponsesOptions())
    responses.feed(failed)
    assert chat.answer.truncated
    assert responses.truncated
