"""The last stage, always on: an automaton that lets only legal event streams through."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import Failure
from pipeline.events import (
    EVENT_TYPES,
    CallProgress,
    Event,
    Failed,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.stage import Stage

RULES = {
    "known-events": "only the events of pipeline.events may leave the last stage",
    "whole-calls": "a call has an id, a name and all of its arguments",
    "unique-call-ids": "no two calls have the same id",
    "dense-indices": "calls are numbered 0, 1, 2, … in the order they leave",
    "failure-is-final": "after a failure only the end of the turn may follow",
    "one-end": "every turn ends, once",
}


class GuardContract(Stage):
    """Whatever the stages before it do, what leaves is legal: one end, last, and whole calls.

    A broken rule becomes a failure that names it, so a stage's bug shows in the answer and in the
    books and never as an illegal stream on the wire.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[str] = set()
        self._failed = False

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case TurnEnd():
                self.done = True
                return (event,)
            case _ if self._failed:
                return self.drop(event, "contract: failure-is-final")
            case ToolCall():
                rule = self._broken_by(event)
                return self._violation(rule, event) if rule else (event,)
            case ToolCallFragment() | CallProgress():
                return self._violation("whole-calls", event)
            case Failed():
                self._failed = True
                return (event,)
            case _ if type(event) in EVENT_TYPES:
                return (event,)
            case _:
                return self._violation("known-events", event)

    def close(self) -> Sequence[Event]:
        """The input ended and no end was seen: the backend went away in the middle of the turn."""
        self.done = True
        failure = Failure(
            "the backend's stream ended before the turn did; send the request again",
            status=502,
            type="server_error",
            code="stream_ended_early",
        )
        return self.make(*([] if self._failed else [Failed(failure)]), TurnEnd("failed"))

    def _broken_by(self, call: ToolCall) -> str | None:
        if not (call.call_id and call.name and call.arguments):
            return "whole-calls"
        if call.call_id in self._ids:
            return "unique-call-ids"
        if call.index != len(self._ids):
            return "dense-indices"
        self._ids.add(call.call_id)
        return None

    def _violation(self, rule: str, event: Event) -> Sequence[Event]:
        self.done = True
        self.drop(event, f"contract: {rule}")
        failure = Failure(
            f"a stage broke the rule {rule!r} of the event contract ({RULES[rule]}): "
            f"it let through a {type(event).__name__}",
            status=500,
            type="server_error",
            code="contract_violation",
        )
        at = getattr(event, "at", 0.0)
        return self.make(Failed(failure, at=at), TurnEnd("failed", at=at))
