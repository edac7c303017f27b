"""Events read as the items of one response: the one sequence that every client accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    TextDelta,
    ToolCall,
    TurnEnd,
    Usage,
)
from pipeline.formats.use_tool import write_use_tool
from sinks.answer import Answer
from sinks.finish_reason import FinishReason, finish_reason
from sinks.responses.items import Call, Item, ItemStatus, Message, Reasoning, client_name, is_custom
from sinks.responses.options import ResponsesOptions
from sinks.responses.response import Status, error_event, error_object, response_object

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesAnswer(Answer):
    """One response as far as it has come: at most one item is open, and ended means ended.

    What it yields has no sequence numbers; those belong to the sink that sends it.
    """

    def __init__(self, options: ResponsesOptions) -> None:
        super().__init__()
        self.options = options
        self.failure: Failure | None = None
        """What went wrong, whether the client reads of it or not."""
        self.finish_reason: FinishReason | None = None
        """Why the turn ended, in the words of Chat Completions; None while it runs or failed."""
        self.started = False
        self.ended = False
        self.message: Message | None = None
        """The message being written, if one is."""
        self.output: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {}
        """The finished response."""
        self.withheld: dict[str, str] = {}
        """Sealed reasoning that the client is not shown, by the id of its item."""
        self._reasoning: Reasoning | None = None
        self._unsealed: dict[str, str] = {}
        """Items that were closed before their sealed content came: their ids, by the backend's."""
        self._ids: set[str] = set()

    @property
    def error(self) -> Failure | None:
        """The failure that the client reads: none, once it has a call to run."""
        return None if self.calls else self.failure

    @property
    def hidden_failure(self) -> Failure | None:
        """What failed after a call was written: the call stands, and only the log has it."""
        return self.failure if self.calls else None

    def whole(self, items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """A response of items that are there at once, from its beginning to its end."""
        events = list(self._begin())
        for item in items:
            place = {"output_index": len(self.output), "item": item}
            self.output.append(item)
            events.append({"type": "response.output_item.added"} | place)
            events.append({"type": "response.output_item.done"} | place)
        return [*events, *self._end(TurnEnd())]

    def usage(self) -> dict[str, Any] | None:
        """The exact token counts, summed over upstream responses; None where none were given."""
        if (spent := self._spent) is None:
            return None
        return {
            "input_tokens": spent.input_tokens,
            "input_tokens_details": {"cached_tokens": spent.cached_tokens},
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
            "total_tokens": spent.total_tokens,
        }

    def feed(self, event: Event) -> list[dict[str, Any]]:
        """What an event adds to the stream.

        A turn that fails before there was a stream adds nothing: the client can still get a status
        of its own.
        """
        return [] if self.ended else list(self._read(event))

    def begin(self) -> list[dict[str, Any]]:
        """The first two events, once."""
        return list(self._begin())

    def fail(self, failure: Failure) -> list[dict[str, Any]]:
        """The end of a stream that can no longer be refused with a status of its own."""
        if self.ended and self.started:
            return []
        self.failure = failure
        last = self._end(TurnEnd("failed")) if self.calls else self._fail(failure)
        return [*self._begin(), *last]

    # -- items -----------------------------------------------------------------------------------

    def _read(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case TextDelta(text) if text:
                yield from self._say(text)
            case ReasoningDelta(text) if text and self.options.reasoning:
                yield from self._think(event)
            case ReasoningItem() if self.options.reasoning:
                yield from self._seal(event)
            case ToolCall():
                yield from self._call(event)
            case Usage():
                self.count(event)
            case Failed(failure):
                self.failure = failure
                self.note_truncation(event)
                if not self.calls:
                    self.ended = True
                    if self.started:
                        yield from self._fail(failure)
            case TurnEnd():
                yield from self._end(event)
            case _:
                pass

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self.started:
            self.started = True
            for name in ("created", "in_progress"):
                response = response_object(self.options, "in_progress")
                yield {"type": f"response.{name}", "response": response}

    def _say(self, text: str) -> Iterator[dict[str, Any]]:
        if self.message is None:
            yield from self._close()
            yield from self._begin()
            self.message = Message(self._new_id("msg"), len(self.output))
            yield from self.message.open()
        yield self.message.say(text)

    def _think(self, delta: ReasoningDelta) -> Iterator[dict[str, Any]]:
        if self._reasoning is None or not _same(self._reasoning.source, delta.item_id):
            yield from self._open_reasoning(delta.item_id)
        if self._reasoning is not None:
            yield from self._reasoning.think(delta)

    def _seal(self, event: ReasoningItem) -> Iterator[dict[str, Any]]:
        """The end of a reasoning item, which may be all that comes of it.

        One whose item had to be closed before adds nothing: it was read already.
        """
        if event.item_id in self._unsealed:
            self._withhold(self._unsealed.pop(event.item_id), event.encrypted_content)
            return
        if self._reasoning is None or not _same(self._reasoning.source, event.item_id):
            yield from self._open_reasoning(event.item_id)
            for part, text in enumerate(event.summary):
                yield from self._think(ReasoningDelta(text, part=part, item_id=event.item_id))
        sealed = event.encrypted_content if self.options.include_encrypted else None
        if self._reasoning is not None:
            if sealed is None:
                self._withhold(self._reasoning.id, event.encrypted_content)
            yield from self._done(self._reasoning, self._reasoning.close(sealed))

    def _withhold(self, item_id: str, sealed: str | None) -> None:
        if sealed:
            self.withheld[item_id] = sealed

    def _open_reasoning(self, source: str) -> Iterator[dict[str, Any]]:
        yield from self._close()
        yield from self._begin()
        # The sealed content is bound to the backend's own id, and is refused under another.
        own_id = source if source and source not in self._ids else self._new_id("rs")
        self._ids.add(own_id)
        self._reasoning = Reasoning(own_id, len(self.output), source)
        yield from self._reasoning.open()

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        tool = self.options.tools.get(call.name)
        if self.options.write_xml:
            delimiter = self.options.delimiter if self.calls else ""
            block = write_use_tool(client_name(call, tool), call.arguments)
            yield from self._say(delimiter + block)
        yield from self._close()
        yield from self._begin()
        self.calls.append(call)
        prefix = "ctc" if is_custom(tool) else "fc"
        item = Call(self._new_id(prefix), len(self.output), call, tool)
        yield from self._done(item, item.whole())

    def _new_id(self, prefix: str) -> str:
        while (own_id := self.options.new_id(prefix)) in self._ids:
            pass  # the backend had it first
        self._ids.add(own_id)
        return own_id

    def _close(self, status: ItemStatus = "completed") -> Iterator[dict[str, Any]]:
        if self.message is not None:
            yield from self._done(self.message, self.message.close(status))
        if self._reasoning is not None:
            self._unsealed[self._reasoning.source] = self._reasoning.id
            yield from self._done(self._reasoning, self._reasoning.close())

    def _done(self, item: Item, last: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from last
        self.message = self._reasoning = None
        if item.done is not None:
            self.output.append(item.done)

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, end: TurnEnd) -> Iterator[dict[str, Any]]:
        self.note_truncation(end)
        self.finish_reason = finish_reason(
            end.reason, has_calls=bool(self.calls), call_incomplete=end.call_incomplete
        )
        incomplete = _INCOMPLETE.get(self.finish_reason)
        yield from self._begin()
        yield from self._close("completed" if incomplete is None else "incomplete")
        if incomplete is None:
            yield self._terminal("completed", completed_at=self.options.now())
        else:
            yield self._terminal("incomplete", incomplete=incomplete)

    def _fail(self, failure: Failure) -> Iterator[dict[str, Any]]:
        yield from self._close("incomplete")
        yield self._terminal("failed", error=error_object(failure))
        yield error_event(failure)

    def _terminal(self, status: Status, **facts: Any) -> dict[str, Any]:
        self.ended = True
        self.response = response_object(
            self.options, status, output=self.output, usage=self.usage(), **facts
        )
        return {"type": f"response.{status}", "response": self.response}


def _same(source: str, item_id: str) -> bool:
    """Whether two ids of the backend may mean one item: some dialects give none."""
    return source == item_id or not source or not item_id
