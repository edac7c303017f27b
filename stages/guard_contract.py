"""The last stage, always on: an automaton that lets only legal event streams through."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from pipeline.errors import Failure
from pipeline.events import (
    EVENT_TYPES,
    CallProgress,
    Event,
    Failed,
    LostCall,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.stage import Stage

RULES = {
    "known-events": "only the events of pipeline.events may leave the last stage, text as strings",
    "whole-calls": "a call has an id, a name and all of its arguments",
    "unique-call-ids": "no two calls have the same id",
    "dense-indices": "calls are numbered 0, 1, 2, … in the order they leave",
    "failure-is-final": "after a failure only the end of the turn may follow",
    "one-choice": "all events of a turn are of the same choice",
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
        self._lost = False
        self._choice: int | None = None
        self._now = 0.0

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        if self._failed or self._choice is None:
            return None
        for delta in text:
            if delta.choice != self._choice or type(delta.text) is not str:
                return None
        self._now = text[-1].at
        return text

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) not in EVENT_TYPES:
            return self._violation("known-events", event)
        self._choice = event.choice if self._choice is None else self._choice
        if event.choice != self._choice:
            return self._violation("one-choice", event)
        self._now = event.at
        match event:
            case TurnEnd():
                self.done = True
                return self._told(event)
            case _ if self._failed:
                return self.drop(event, "contract: failure-is-final")
            case ToolCall():
                rule = self._broken_by(event)
                return self._violation(rule, event) if rule else (event,)
            case ToolCallFragment() | CallProgress():
                return self._violation("whole-calls", event)
            case LostCall():
                self._lost = True
                return self.fold(event, "reported by the turn's end")
            case Failed():
                self._failed = True
                return self._told(event)
            case TextDelta() | ReasoningDelta() if type(event.text) is not str:
                return self._violation("known-events", event)
            case _:
                return (event,)

    def _told(self, end: Failed | TurnEnd) -> Sequence[Event]:
        """The end, which tells of a call that was lost: whichever stage made it may not know."""
        if end.calls_truncated or not self._lost:
            return (end,)
        return self.swap(end, evolve(end, calls_truncated=True))

    def close(self) -> Sequence[Event]:
        """The input ended and no end was seen: its sender went away."""
        self.done = True
        self.note("contract: one-end")
        failure = Failure(
            "the turn never ended: the backend's stream broke off, or a stage lost its end; "
            "send the request again",
            status=502,
            type="server_error",
            code="stream_ended_early",
        )
        return self._end([] if self._failed else [failure])

    def _end(self, failures: Sequence[Failure]) -> Sequence[Event]:
        choice = self._choice or 0
        lost, now = self._lost, self._now
        failed = [Failed(failure, choice, now, calls_truncated=lost) for failure in failures]
        end = TurnEnd("failed", calls_truncated=lost, choice=choice, at=now)
        return self.make(*failed, end)

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
        return self._end([failure])
