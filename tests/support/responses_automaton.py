"""An automaton that reads a stream of the Responses API and raises at the first breach.

It knows nothing of the code that writes streams: what it asks for is what clients were seen to
need. Feed it the events of any stream, in order, or give it the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tests.support.responses_objects import (
    BreachError,
    Json,
    check_item,
    check_part,
    check_response,
    must,
)

_PLACE: Final = {"item_id", "output_index"}
_FIELDS: Final[dict[str, set[str]]] = {
    "response.created": {"response"},
    "response.in_progress": {"response"},
    "response.completed": {"response"},
    "response.incomplete": {"response"},
    "response.failed": {"response"},
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": _PLACE | {"content_index", "part"},
    "response.content_part.done": _PLACE | {"content_index", "part"},
    "response.output_text.delta": _PLACE | {"content_index", "delta", "logprobs"},
    "response.output_text.done": _PLACE | {"content_index", "text", "logprobs"},
    "response.reasoning_text.delta": _PLACE | {"content_index", "delta"},
    "response.reasoning_text.done": _PLACE | {"content_index", "text"},
    "response.reasoning_summary_part.added": _PLACE | {"summary_index", "part"},
    "response.reasoning_summary_part.done": _PLACE | {"summary_index", "part"},
    "response.reasoning_summary_text.delta": _PLACE | {"summary_index", "delta"},
    "response.reasoning_summary_text.done": _PLACE | {"summary_index", "text"},
    "response.function_call_arguments.delta": _PLACE | {"delta"},
    "response.function_call_arguments.done": _PLACE | {"name", "arguments"},
    "response.custom_tool_call_input.delta": _PLACE | {"delta"},
    "response.custom_tool_call_input.done": _PLACE | {"input"},
    "keepalive": set(),
    "error": {"code", "message", "param", "error"},
}
KINDS: Final = frozenset(_FIELDS)
_TERMINAL: Final = {"response.completed", "response.incomplete", "response.failed"}

_TEXT_EVENTS: Final = {
    "response.output_text": "output_text",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
_WRITTEN: Final = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}


class _Part:
    """One part of an item's content or summary while it is written."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.text = ""
        self.whole: str | None = None


class _OpenItem:
    """One item from its first event to its last."""

    def __init__(self, item: Json) -> None:
        self.item = item
        self.kind: str = item["type"]
        self.content: list[Json] = []
        self.summary: list[Json] = []
        self.part: _Part | None = None
        self.deltas: list[str] = []
        self.written: str | None = None

    def feed(self, event: Json) -> None:
        stem, _, act = event["type"].rpartition(".")
        if stem in ("response.content_part", "response.reasoning_summary_part"):
            self._part_event(event, stem, act)
        elif stem in _TEXT_EVENTS:
            self._text_event(event, _TEXT_EVENTS[stem], act)
        else:
            kind, field = _WRITTEN[stem]
            must(self.kind == kind, "the event belongs to the item", self.kind, event)
            must(self.written is None, "nothing follows the last word", event)
            if act == "delta":
                self.deltas.append(event["delta"])
                return
            must(self.deltas, "a call has at least one delta", event)
            self.written = event[field]
            must("".join(self.deltas) == self.written, "deltas add up to the whole", event)
            must(event.get("name", self.item["name"]) == self.item["name"], "one name", event)

    def _parts(self, event: Json) -> tuple[list[Json], int]:
        if "summary_index" in event:
            return self.summary, event["summary_index"]
        return self.content, event["content_index"]

    def _part_event(self, event: Json, stem: str, act: str) -> None:
        part = event["part"]
        check_part(part)
        kinds = {"message": {"output_text"}, "reasoning": {"reasoning_text", "summary_text"}}
        must(part["type"] in kinds.get(self.kind, set()), "the part fits its item", event)
        summary = part["type"] == "summary_text"
        must(summary == (stem == "response.reasoning_summary_part"), "the event fits", event)
        parts, index = self._parts(event)
        must(index == len(parts), "parts are numbered from 0", event)
        if act == "added":
            must(self.part is None, "one part is open at a time", event)
            must(part["text"] == "", "a part begins empty", event)
            self.part = _Part(part["type"])
            return
        if self.part is None or self.part.whole is None:
            raise BreachError("a part ends after its text", event)
        must(self.part.kind == part["type"], "a part stays what it was", event)
        must(self.part.whole == part["text"], "a part ends with its text", event)
        parts.append(part)
        self.part = None

    def _text_event(self, event: Json, kind: str, act: str) -> None:
        if self.part is None or self.part.whole is not None:
            raise BreachError("text belongs to an open part", event)
        must(self.part.kind == kind, "text is of its part's kind", event)
        parts, index = self._parts(event)
        must(index == len(parts), "text is of the open part", event)
        if act == "delta":
            must(event["delta"], "a delta says something", event)
            self.part.text += event["delta"]
            return
        must(event["text"] == self.part.text, "deltas add up to the whole", event)
        self.part.whole = event["text"]

    def close(self, item: Json) -> None:
        must(self.part is None, "an item ends after its parts", item)
        fixed = ("id", "type", "role", "call_id", "name", "namespace")
        for name in fixed:
            must(item.get(name) == self.item.get(name), "an item keeps its identity", name, item)
        match self.kind:
            case "message":
                must(item["content"] == self.content, "a message is its parts", item)
                must(self.content, "a message says something", item)
            case "reasoning":
                must(item["summary"] == self.summary, "a summary is its parts", item)
                must(item.get("content", []) == self.content, "reasoning is its parts", item)
            case "compaction":
                must(item == self.item, "a compaction is there at once", item)
            case _:
                field = "arguments" if self.kind == "function_call" else "input"
                must(self.written is not None, "a call ends after its last word", item)
                must(item[field] == self.written, "a call is what was written", item)
        if "status" in item:
            must(item["status"] in ("completed", "incomplete"), "an item ends", item)


class ResponsesAutomaton:
    """Accepts the one sequence that every client takes."""

    def __init__(self) -> None:
        self._number = 0
        self._lifecycle: list[str] = []
        self._open: _OpenItem | None = None
        self._ids: set[str] = set()
        self._call_ids: set[str] = set()
        self._done: list[Json] = []
        self._first: Json = {}
        self.response: Json = {}
        """The response that the stream ended with."""

    def feed(self, event: Json) -> None:
        kind = event.get("type")
        if kind not in _FIELDS:
            raise BreachError("an unknown event", event)
        fields = {"type", "sequence_number"} | _FIELDS[kind]
        must(set(event) == fields, "an event has its fields and no others", fields ^ set(event))
        must(event["sequence_number"] == self._number, "numbers have no gap", event)
        self._number += 1
        if kind in ("response.created", "response.in_progress"):
            self._begin(kind, event["response"])
        elif kind == "error":
            self._error(event)
        else:
            must(len(self._lifecycle) == 2, "after the beginning, before the end", event)
            self._middle(kind, event)

    def end(self) -> Json:
        """The stream is over; the response it ended with."""
        must(len(self._lifecycle) >= 3, "a stream ends with a terminal event", self._lifecycle)
        told = self._lifecycle[2:]
        failed = ["response.failed", "error"]
        must(told == failed or (len(told) == 1 and told != failed[:1]), "one end", told)
        return self.response

    def _begin(self, kind: str, response: Json) -> None:
        expected = ["response.created", "response.in_progress"][: len(self._lifecycle) + 1]
        self._lifecycle.append(kind)
        must(self._lifecycle == expected, "created, then in_progress", self._lifecycle)
        check_response(response)
        must(response["status"] == "in_progress", "it has just begun", response)
        must(response["output"] == [] and response["usage"] is None, "and is empty", response)
        self._first = self._first or response
        must(response == self._first, "nothing has changed yet", response)

    def _middle(self, kind: str, event: Json) -> None:
        if kind in _TERMINAL:
            self._terminal(kind, event["response"])
        elif kind == "response.output_item.added":
            self._added(event)
        elif kind == "response.output_item.done":
            self._close(event)
        elif kind != "keepalive":
            if self._open is None:
                raise BreachError("the event belongs to an open item", event)
            must(event["item_id"] == self._open.item["id"], "to the open one", event)
            must(event["output_index"] == len(self._done), "at its place", event)
            self._open.feed(event)

    def _added(self, event: Json) -> None:
        item = event["item"]
        must(self._open is None, "one item is open at a time", event)
        must(event["output_index"] == len(self._done), "items are numbered from 0", event)
        check_item(item)
        must(item["id"] not in self._ids, "ids of items are their own", event)
        self._ids.add(item["id"])
        must(item.get("status", "in_progress") == "in_progress", "an item begins", event)
        empty = [item.get(name) for name in ("content", "summary", "arguments", "input")]
        must(not any(empty), "an item begins empty", event)
        if "call_id" in item:
            must(item["call_id"] not in self._call_ids, "ids of calls are their own", event)
            self._call_ids.add(item["call_id"])
        self._open = _OpenItem(item)

    def _close(self, event: Json) -> None:
        if self._open is None:
            raise BreachError("only an open item can be done", event)
        must(event["output_index"] == len(self._done), "at its place", event)
        check_item(event["item"])
        self._open.close(event["item"])
        self._done.append(event["item"])
        self._open = None

    def _terminal(self, kind: str, response: Json) -> None:
        self._lifecycle.append(kind)
        must(self._open is None, "every item is done", response)
        check_response(response)
        must(kind == f"response.{response['status']}", "the status is the event's", response)
        must(response["output"] == self._done, "the output is the items that were done", response)
        changed = {name for name in response if response[name] != self._first.get(name)}
        told = {"status", "output", "usage", "completed_at", "error", "incomplete_details"}
        must(changed <= told, "the request's side stays what it was", changed - told)
        self.response = response

    def _error(self, event: Json) -> None:
        must(self._lifecycle[-1:] == ["response.failed"], "an error follows the failure", event)
        self._lifecycle.append("error")
        error = event["error"]
        must(set(error) == {"type", "code", "message", "param"}, "a whole error", event)
        for name in ("code", "message", "param"):
            must(error[name] == event[name], "told twice alike", event)
        failed = self.response["error"]
        must(failed == {"code": error["code"], "message": error["message"]}, "and thrice", event)


# -- whole streams ---------------------------------------------------------------------------------


def parse_stream(data: bytes) -> list[Json]:
    """The events of a stream of server-sent events; each is named as its type says."""
    *frames, done, rest = data.decode().split("\n\n")
    must((done, rest) == ("data: [DONE]", ""), "the stream ends with [DONE]", done, rest)
    events: list[Json] = []
    for frame in frames:
        name, _, line = frame.partition("\ndata: ")
        event = msgspec.json.decode(line)
        must(name == f"event: {event['type']}", "an event has its type's name", frame)
        events.append(event)
    return events


def check_events(events: Iterable[Json]) -> Json:
    """Read a whole stream; the response that it ended with."""
    automaton = ResponsesAutomaton()
    for event in events:
        automaton.feed(event)
    return automaton.end()


def check_stream(data: bytes) -> Json:
    """Read a whole stream of bytes; the response that it ended with."""
    return check_events(parse_stream(data))
