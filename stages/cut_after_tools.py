"""Ends the turn once the model has made its calls, and drops its narration behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

from pipeline.events import (
    CallProgress,
    Event,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolOutput,
    TurnEnd,
)
from pipeline.stage import Stage

TAIL = "narration after the last call"


class CutAfterTools(Stage):
    """Nothing the model says after its last call passes, and nothing is generated after it.

    A burst of calls ends with its upstream response, with a tool output the backend made itself,
    or when `grace` seconds have passed since the last call. Text between two calls passes: it is
    held until it is known whether another call follows.
    """

    def __init__(
        self,
        stop: bool = True,
        mode: Literal["burst", "first"] = "burst",
        grace: float = 0.3,
        suppress_tail: bool = True,
    ) -> None:
        super().__init__()
        self._stop = stop
        self._mode = mode
        self._grace = grace
        self._suppress_tail = suppress_tail
        self._calling = False
        self._tail: list[Event] = []
        self._now = 0.0
        self._choice = 0

    def skim(self, text: Sequence[TextDelta]) -> bool:
        if self._calling:
            return False
        self._now, self._choice = text[-1].at, text[-1].choice
        return True

    def feed(self, event: Event) -> Sequence[Event]:
        self._now, self._choice = event.at, event.choice
        match event:
            case ToolCall():
                return self._call(event)
            case CallProgress():
                if self._calling and self._stop:
                    self.deadline = event.at + self._grace
                return self.fold(event, "a call is on its way")
            case TextDelta() | ReasoningDelta() | ReasoningItem() if self._holding:
                self._tail.append(event)
                return ()
            case ResponseEnd() if self._calling and self._stop:
                return [event, *self._cut("the response ended")]
            case ToolOutput() if self._calling and self._stop:
                return [event, *self._cut("the backend answered a call")]
            case TurnEnd():
                self._drop_tail()
                self.deadline = inf
                return (event,)
            case _:
                return (event,)

    @property
    def _holding(self) -> bool:
        return self._calling and self._suppress_tail

    def wake(self, now: float) -> Sequence[Event]:
        self._now = now
        return self._cut("no further call came")

    def close(self) -> Sequence[Event]:
        self._drop_tail()
        return ()

    def _call(self, event: ToolCall) -> Sequence[Event]:
        between, self._tail = self._tail, []
        self._calling = True
        if not self._stop:
            return [*between, event]
        if self._mode == "first":
            return [*between, event, *self._cut("the first call")]
        self.deadline = event.at + self._grace
        return [*between, event]

    def _cut(self, cause: str) -> Sequence[Event]:
        self.mark(cause)
        self.done = True
        self.deadline = inf
        self._drop_tail()
        return self.make(TurnEnd("tool_calls", choice=self._choice, at=self._now))

    def _drop_tail(self) -> None:
        for event in self._tail:
            self.drop(event, TAIL)
        self._tail.clear()
