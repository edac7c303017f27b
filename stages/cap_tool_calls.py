"""Forwards at most so many calls of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from pipeline.events import Event, ToolCall, TurnEnd
from pipeline.options import flag
from pipeline.stage import Stage
from pipeline.turn import Turn
from stages.tool_calls.aggregator import MOST_CALLS


@frozen(slots=False)
class CapOptions:
    """How many calls of a turn are forwarded."""

    tool_block_max: int = flag(
        "PROXY_TOOL_BLOCK_MAX",
        0,
        "forward at most so many calls a turn; 0 means all of them",
        stage="cap",
        bounds=(0, MOST_CALLS),
    )


class CapToolCalls(Stage):
    """At most `tool_block_max` calls leave, 0 meaning all; the turn's end tells if any was not
    forwarded.

    A request that has room for one call only gets one, whatever that says, and one that wants so
    many at most gets no more. With `stop`, the first call too many ends the turn.
    """

    wants = frozenset({ToolCall, TurnEnd})

    def __init__(self, options: CapOptions | None = None, *, stop: bool = True) -> None:
        super().__init__()
        self._most = (options or CapOptions()).tool_block_max
        self._stop = stop
        self._forwarded = 0
        self._truncated = False

    def begin(self, turn: Turn) -> None:
        wishes = (self._most, turn.max_tool_calls, 1 if turn.one_call_only else 0)
        self._most = min(filter(None, wishes), default=0)

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case ToolCall() if self._most and self._forwarded >= self._most:
                self._truncated = True
                self.drop(event, "over the cap")
                return self._end(event) if self._stop else ()
            case ToolCall():
                self._forwarded += 1
                return (event,)
            case TurnEnd() if self._truncated:
                return self.swap(event, evolve(event, calls_truncated=True))
            case _:
                return (event,)

    def _end(self, cause: ToolCall) -> Sequence[Event]:
        self.done = True
        self.mark("over the cap")
        end = TurnEnd("tool_calls", calls_truncated=True, choice=cause.choice, at=cause.at)
        return self.make(end)
