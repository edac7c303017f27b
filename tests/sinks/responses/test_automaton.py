"""The automaton itself: it accepts a legal stream and refuses every way of breaking one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias

import pytest

from pipeline.events import Event, ReasoningDelta, ReasoningItem, TextDelta, ToolCall, TurnEnd
from sinks.responses import ResponsesSse
from tests.support.responses_automaton import KINDS, check_events, check_stream
from tests.support.responses_objects import REQUIRED, BreachError
from tests.support.responses_turns import CALL, DOWN, END, USAGE, options, stream

Events: TypeAlias = list[dict[str, Any]]
TURN: list[Event] = [
    ReasoningDelta("A", item_id="rs_x"),
    ReasoningItem("rs_x", ("A",)),
    TextDelta("a"),
    TextDelta("b"),
    CALL,
    USAGE,
    END,
]
LEGAL = stream(*TURN)


def find(events: Events, kind: str) -> int:
    return next(at for at, event in enumerate(events) if event["type"].endswith(kind))


def numbered(events: Events) -> Events:
    return [event | {"sequence_number": at} for at, event in enumerate(events)]


def without(kind: str) -> Callable[[Events], Events]:
    return lambda events: [e for e in events if not e["type"].endswith(kind)]


def twice(kind: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        at = find(events, kind)
        return [*events[: at + 1], *events[at:]]

    return change


def changed(kind: str, *path: str | int, to: object) -> Callable[[Events], Events]:
    """The first event of a kind with another value at a path."""

    def change(events: Events) -> Events:
        place: Any = events[find(events, kind)]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to
        return events

    return change


def moved(kind: str, by: int) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        at = find(events, kind)
        event = events.pop(at)
        return [*events[: at + by], event, *events[at + by :]]

    return change


BREACHES: dict[str, Callable[[Events], Events]] = {
    "no beginning": without("response.created"),
    "half a beginning": without("response.in_progress"),
    "two beginnings": twice("response.created"),
    "no end": without("response.completed"),
    "two ends": twice("response.completed"),
    "words after the end": lambda events: [*events, events[find(events, "output_text.delta")]],
    "an error after a good end": lambda events: [*events, stream(TextDelta("a"), DOWN)[-1]],
    "an item that was not added": without("output_item.added"),
    "an item that is never done": without("output_item.done"),
    "an item done twice": twice("output_item.done"),
    "a part that was not added": without("content_part.added"),
    "a part that is never done": without("content_part.done"),
    "a text that is never done": without("output_text.done"),
    "a text done twice": twice("output_text.done"),
    "a delta too many": twice("output_text.delta"),
    "a delta too few": lambda events: events[:-1] and [
        event for at, event in enumerate(events) if at != find(events, "output_text.delta")
    ],
    "a call without deltas": without("function_call_arguments.delta"),
    "a call without a last word": without("function_call_arguments.done"),
    "a call's delta twice": twice("function_call_arguments.delta"),
    "a delta after a call's last word": moved("function_call_arguments.delta", 1),
    "a delta before its part": moved("output_text.delta", -1),
    "a summary without its part": without("reasoning_summary_part.added"),
    "an index that jumps": changed("output_item.added", "output_index", to=7),
    "a part's index that jumps": changed("content_part.added", "content_index", to=1),
    "a text of another part": changed("output_text.delta", "content_index", to=1),
    "a text of another item": changed("output_text.delta", "item_id", to="msg_9"),
    "an item that changes its id": changed("output_item.done", "item", "id", to="rs_other"),
    "a message that is not its parts": changed("content_part.done", "part", "text", to="c"),
    "another name": changed("function_call_arguments.done", "name", to="other"),
    "a field too many": changed("output_text.delta", "obfuscation", to="x"),
    "output that was not done": changed("response.completed", "response", "output", to=[]),
    "a status that is not the event's": changed(
        "response.completed", "response", "status", to="incomplete"
    ),
    "a good end with an error": changed(
        "response.completed", "response", "error", to={"code": "server_error", "message": "m"}
    ),
    "a request that changes": changed("response.completed", "response", "model", to="other"),
    "counts that are no integers": changed(
        "response.completed", "response", "usage", "total_tokens", to=1.5
    ),
    "a field that may not be null": changed("response.created", "response", "tools", to=None),
    "an unknown event": changed("output_text.delta", "type", to="response.function_call.delta"),
    "an unknown item": changed("output_item.added", "item", "type", to="thought"),
    "a part with null": changed("output_item.done", "item", "summary", to=None),
}  # fmt: skip


def test_a_legal_stream_is_accepted() -> None:
    assert check_events(LEGAL)["status"] == "completed"


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_is_refused(breach: Callable[[Events], Events]) -> None:
    with pytest.raises((BreachError, TypeError)):
        check_events(numbered(breach(deepcopy(LEGAL))))


@pytest.mark.parametrize("at", range(len(LEGAL)))
def test_a_gap_in_the_numbers_is_refused_anywhere(at: int) -> None:
    events = deepcopy(LEGAL)
    events[at]["sequence_number"] += 1
    with pytest.raises(BreachError, match="gap"):
        check_events(events)


@pytest.mark.parametrize("at", range(len(LEGAL)))
def test_no_field_of_any_event_can_be_absent(at: int) -> None:
    for name in LEGAL[at]:
        events = deepcopy(LEGAL)
        del events[at][name]
        with pytest.raises(BreachError):
            check_events(events)


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_no_field_of_the_response_can_be_absent(name: str) -> None:
    for kind in ("response.created", "response.in_progress", "response.completed"):
        events = deepcopy(LEGAL)
        del events[find(events, kind)]["response"][name]
        with pytest.raises(BreachError):
            check_events(events)


def test_a_failure_without_its_error_is_refused() -> None:
    failed = stream(TextDelta("a"), DOWN)
    assert check_events(failed)["status"] == "failed"
    with pytest.raises(BreachError):
        check_events(failed[:-1])


def test_two_calls_of_one_id_are_refused() -> None:
    with pytest.raises(BreachError, match="ids of calls"):
        stream(CALL, ToolCall("call_a", "search", "{}", index=1), END)


def test_a_compaction_is_added_and_done_at_once() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
    data = ResponsesSse(options()).whole([item])
    assert check_stream(data)["output"] == [item]
    other = data.replace(b"sealed", b"opened", 1)
    with pytest.raises(BreachError, match="at once"):
        check_stream(other)


def test_bytes_without_done_and_with_another_name_are_refused() -> None:
    frame = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'
    with pytest.raises(BreachError, match="DONE"):
        check_stream(frame)
    with pytest.raises(BreachError, match="name"):
        check_stream(frame.replace(b"event: keepalive", b"event: ping") + b"data: [DONE]\n\n")


def test_every_kind_of_event_it_knows_is_one_that_the_sinks_write() -> None:
    turns: list[list[Event]] = [
        TURN,
        [ReasoningDelta("A", "text"), ToolCall("call_a", "shell", '{"input":"ls"}'), END],
        [TextDelta("a"), DOWN],
        [TextDelta("a"), TurnEnd("length")],
    ]
    seen = {event["type"] for turn in turns for event in stream(*turn)}
    assert seen | {"keepalive"} == KINDS
