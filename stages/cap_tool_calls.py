"""Forwards at most so many calls of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from pipeline.events import Event, TextDelta, ToolCall, TurnEnd
from pipeline.stage import Stage
from pipeline.turn import Turn


class CapToolCalls(Stage):
    """At most `most` calls leave, 0 meaning all; the turn's end tells if any was kept back.

    A request that has room for one call only gets one, whatever `most` says, and one that wants so
    many at most gets no more.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self._most = most
        self._forwarded = 0
        self._truncated = False

    def begin(self, turn: Turn) -> None:
        wishes = (self._most, turn.max_tool_calls, 1 if turn.one_call_only else 0)
        self._most = min(filter(None, wishes), default=0)

    def skim(self, text: Sequence[TextDelta]) -> bool:
        return True

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case ToolCall() if self._most and self._forwarded >= self._most:
                self._truncated = True
                return self.drop(event, "over the cap")
            case ToolCall():
                self._forwarded += 1
                return (event,)
            case TurnEnd() if self._truncated:
                return self.swap(event, evolve(event, calls_truncated=True))
            case _:
                return (event,)
