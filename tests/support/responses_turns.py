"""Turns for the Responses sinks, and what they write in a form that reads well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ToolCall,
    TurnEnd,
    Usage,
)
from pipeline.turn import Tool
from sinks.responses import ResponsesJson, ResponsesOptions, ResponsesSse, numbered_ids
from tests.support.responses_automaton import check_stream, parse_stream

TOOLS = {
    "search": Tool("search"),
    "crm__find": Tool("crm__find", namespace="crm", own_name="find"),
    "shell": Tool("shell", kind="custom"),
    "box__run": Tool("box__run", kind="custom", namespace="box", own_name="run"),
}
CALL = ToolCall("call_a", "search", '{"q": "é <b>"}')
SECOND = ToolCall("call_b", "unknown", "{}", index=1)
END = TurnEnd("completed")
USAGE = Usage(120, 33, 153, 64, 9)
DOWN = Failed(Failure("down", 502, "server_error", "upstream_error"))


def options(**choices: Any) -> ResponsesOptions:
    fixed: dict[str, Any] = {"new_id": numbered_ids(), "now": lambda: 1700000009, "tools": TOOLS}
    return ResponsesOptions("resp_1", 1700000000, {"model": "gpt-5"}, **(fixed | choices))


def stream(*events: Event, **choices: Any) -> list[dict[str, Any]]:
    """The events of a stream that the automaton accepts."""
    data = ResponsesSse(options(**choices)).feed(events)
    check_stream(data)
    return parse_stream(data)


def middle(*events: Event, **choices: Any) -> list[str]:
    """What happens between the beginning and the end, each event in a line."""
    found = stream(*events, **choices)[2:]
    return [line(event) for event in found if not event["type"].startswith("response.comp")]


def line(event: Mapping[str, Any]) -> str:
    left_out = ("type", "sequence_number", "response", "output_index", "annotations", "logprobs")
    told = [value for name, value in event.items() if name not in left_out]
    return " ".join([event["type"].removeprefix("response."), *map(_short, told)])


def _short(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode().replace('"', "'")


def body(*events: Event, **choices: Any) -> dict[str, Any]:
    sink = ResponsesJson(options(**choices))
    sink.feed(events)
    return sink.result().body


EMPTY_PART = "{'type':'output_text','text':'','annotations':[],'logprobs':[]}"


def text_item(number: int, text: str, *deltas: str, status: str = "completed") -> list[str]:
    """A message from its first event to its last."""
    item, part = f"msg_{number}", EMPTY_PART.replace("'text':''", f"'text':'{text}'")
    head = f"{{'id':'{item}','type':'message','status':"
    return [
        f"output_item.added {head}'in_progress','role':'assistant','content':[]}}",
        f"content_part.added {item} 0 {EMPTY_PART}",
        *(f"output_text.delta {item} 0 {delta}" for delta in deltas or (text,)),
        f"output_text.done {item} 0 {text}",
        f"content_part.done {item} 0 {part}",
        f"output_item.done {head}'{status}','role':'assistant','content':[{part}]}}",
    ]
