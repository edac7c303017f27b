"""Forwards at most so many calls of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from pipeline.events import Event, ToolCall, TurnEnd
from pipeline.stage import Stage
from pipeline.turn import Turn


class CapToolCalls(Stage):
    """At most `most` calls leave, 0 meaning all; the turn's end tells if any was kept back.

    A request that has room for one call only gets one, whatever `most` says.
    """

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self._most = most
        self._forwarded = 0
        self._truncated = False

    def begin(self, turn: Turn) -> None:
        if turn.one_call_only:
            self._most = 1

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
