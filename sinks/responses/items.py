"""The items of a response while they are written: each event of their lives, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from pipeline.events import ReasoningDelta, ToolCall
from pipeline.formats.custom_tools import to_text
from pipeline.turn import Tool

Event: TypeAlias = dict[str, Any]
"""An event of the Responses API, all but its sequence number."""
ItemStatus: TypeAlias = Literal["completed", "incomplete"]


class Item:
    """What every item does: it is added, grows, and is done once. `done` is its last form."""

    def __init__(self, item_id: str, output_index: int) -> None:
        self.done: Event | None = None
        self.id = item_id
        self._place: Event = {"item_id": item_id, "output_index": output_index}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": f"response.{kind}", **self._place, **fields}

    def _item_event(self, kind: str, item: Event) -> Event:
        index = self._place["output_index"]
        return {"type": f"response.output_item.{kind}", "output_index": index, "item": item}

    def _finish(self, item: Event) -> Event:
        self.done = item
        return self._item_event("done", item)


class Message(Item):
    """A message of the assistant with one part of text."""

    def __init__(self, item_id: str, output_index: int) -> None:
        super().__init__(item_id, output_index)
        self.place: Event = {**self._place, "content_index": 0}
        self.texts: list[str] = []

    def open(self) -> Iterator[Event]:
        yield self._item_event("added", self._item("in_progress", []))
        yield self._event("content_part.added", content_index=0, part=_text_part(""))

    def say(self, text: str) -> Event:
        self.texts.append(text)
        return text_delta(self.place, text)

    def close(self, status: ItemStatus = "completed") -> Iterator[Event]:
        text = "".join(self.texts)
        yield self._event("output_text.done", content_index=0, text=text, logprobs=[])
        yield self._event("content_part.done", content_index=0, part=_text_part(text))
        yield self._finish(self._item(status, [_text_part(text)]))

    def _item(self, status: str, content: list[Event]) -> Event:
        identity = {"id": self._place["item_id"], "type": "message"}
        return {**identity, "status": status, "role": "assistant", "content": content}


def text_delta(place: Event, text: str) -> Event:
    """A piece of a message's text, as the hot path writes it too."""
    return {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}


def _text_part(text: str) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Reasoning(Item):
    """A reasoning item: parts of a summary, or of the reasoning itself, one after the other.

    `source` is the backend's id for it. It has no status: the API gives it none, and refuses one
    when the item comes back as input.
    """

    def __init__(self, item_id: str, output_index: int, source: str) -> None:
        super().__init__(item_id, output_index)
        self.source = source
        self._summary: list[Event] = []
        self._content: list[Event] = []
        self._part: tuple[str, int] | None = None
        self._texts: list[str] = []

    def open(self) -> Iterator[Event]:
        yield self._item_event("added", self._item())

    def think(self, delta: ReasoningDelta) -> Iterator[Event]:
        if self._part != (delta.kind, delta.part):
            yield from self._end_part()
            self._part = (delta.kind, delta.part)
            yield self._part_event("added", "")
        self._texts.append(delta.text)
        yield self._text_event("delta", delta=delta.text)

    def close(self, encrypted_content: str | None = None) -> Iterator[Event]:
        yield from self._end_part()
        sealed = {} if encrypted_content is None else {"encrypted_content": encrypted_content}
        yield self._finish(self._item() | sealed)

    def _end_part(self) -> Iterator[Event]:
        if self._part is None:
            return
        text = "".join(self._texts)
        yield self._text_event("done", text=text)
        yield self._part_event("done", text)
        if self._part[0] == "summary":
            self._summary.append({"type": "summary_text", "text": text})
        else:
            self._content.append({"type": "reasoning_text", "text": text})
        self._part, self._texts = None, []

    def _part_event(self, what: str, text: str) -> Event:
        if self._part is not None and self._part[0] == "summary":
            part = {"type": "summary_text", "text": text}
            index = len(self._summary)
            return self._event(f"reasoning_summary_part.{what}", summary_index=index, part=part)
        part = {"type": "reasoning_text", "text": text}
        return self._event(f"content_part.{what}", content_index=len(self._content), part=part)

    def _text_event(self, what: str, **text: str) -> Event:
        if self._part is not None and self._part[0] == "summary":
            index = len(self._summary)
            return self._event(f"reasoning_summary_text.{what}", summary_index=index, **text)
        return self._event(f"reasoning_text.{what}", content_index=len(self._content), **text)

    def _item(self) -> Event:
        item: Event = {"id": self._place["item_id"], "type": "reasoning"}
        item["summary"] = list(self._summary)
        return item | ({"content": list(self._content)} if self._content else {})


class Call(Item):
    """A whole call under the name and in the namespace that its client declared."""

    def __init__(self, item_id: str, output_index: int, call: ToolCall, tool: Tool | None) -> None:
        super().__init__(item_id, output_index)
        self._custom = is_custom(tool)
        self._written = to_text(call.arguments) if self._custom else call.arguments or "{}"
        self._call_id = call.call_id
        self._name = client_name(call, tool)
        self._namespace = call.namespace if tool is None else tool.namespace

    def whole(self) -> Iterator[Event]:
        """Its life from its first to its last event."""
        kind = "custom_tool_call_input" if self._custom else "function_call_arguments"
        written = {"input" if self._custom else "arguments": self._written}
        named: Event = {} if self._custom else {"name": self._name}
        yield self._item_event("added", self._item("in_progress", ""))
        yield self._event(f"{kind}.delta", delta=self._written)
        yield self._event(f"{kind}.done", **named, **written)
        yield self._finish(self._item("completed", self._written))

    def _item(self, status: str, written: str) -> Event:
        item: Event = {
            "id": self._place["item_id"],
            "type": "custom_tool_call" if self._custom else "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "input" if self._custom else "arguments": written,
        }
        return item if self._namespace is None else item | {"namespace": self._namespace}


def is_custom(tool: Tool | None) -> bool:
    """Whether a tool takes free text."""
    return tool is not None and tool.kind == "custom"


def client_name(call: ToolCall, tool: Tool | None) -> str:
    """The name that the client gave the tool."""
    return call.name if tool is None else tool.own_name or tool.name
