"""Ends the turn once the model has made its calls, and drops its narration behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, Literal, TypeAlias

from attrs import frozen

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
    TurnStart,
)
from pipeline.options import HOUR, flag
from pipeline.stage import Stage

CutMode: TypeAlias = Literal["burst", "first"]

TAIL = "narration after the last call"
UNSURE: Final = 5.0
"""How long a silence must last to end a burst while it is not known what the backend tells."""


@frozen(slots=False)
class CutOptions:
    """What ends a turn that makes calls, and what is left of the text after them."""

    stop_after_tools: bool = flag(
        "PROXY_STOP_AFTER_TOOLS",
        True,
        "end the generation once the model has made its calls",
        stage="cut",
    )
    stop_after_tools_mode: CutMode = flag(
        "PROXY_STOP_AFTER_TOOLS_MODE",
        "burst",
        "end after the whole burst of calls, or after the first call",
        stage="cut",
    )
    stop_after_tools_grace_ms: int = flag(
        "PROXY_STOP_AFTER_TOOLS_GRACE_MS",
        300,
        "how long a silence ends a burst of calls, where the backend is known not to tell when a "
        "response ends; elsewhere the burst ends with its response",
        stage="cut",
        bounds=(0, HOUR * 1_000),
    )
    suppress_tail_after_tools: bool = flag(
        "PROXY_SUPPRESS_TAIL_AFTER_TOOLS",
        True,
        "drop the text after the last call; text between calls always stays",
        stage="cut",
    )

    @property
    def effective_cut_mode(self) -> str:
        """The mode as clients see it: `off` when nothing is cut."""
        return self.stop_after_tools_mode if self.stop_after_tools else "off"


class CutAfterTools(Stage):
    """Nothing the model says after its last call passes, and nothing is generated after it.

    A burst of calls ends with its upstream response. Only where the backend is known not to tell
    that end, a tool output that it made itself or the grace time of silence end the burst too; as
    long as nothing is known, it takes five seconds. Text between two calls passes: it is held until
    it is known whether another call follows.
    """

    def __init__(self, options: CutOptions | None = None) -> None:
        super().__init__()
        options = options or CutOptions()
        self._stop = options.stop_after_tools
        self._mode = options.stop_after_tools_mode
        self._grace = options.stop_after_tools_grace_ms / 1000
        self._suppress_tail = options.suppress_tail_after_tools
        self._told = False
        self._silence = max(UNSURE, self._grace)
        self._calling = False
        self._writing = False
        """Whether the model was last seen to write a call that is not whole yet."""
        self._tail: list[Event] = []
        self._now = 0.0
        self._choice = 0

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        if self._calling:
            return None
        self._now, self._choice = text[-1].at, text[-1].choice
        return text

    def feed(self, event: Event) -> Sequence[Event]:
        self._now, self._choice = event.at, event.choice
        match event:
            case TurnStart():
                self._told = event.response_ends == "told"
                self._silence = self._silence_after(event)
                return (event,)
            case ToolCall():
                return self._call(event)
            case CallProgress():
                self._writing = True
                self._wait_on()
                return self.fold(event, "a call is on its way")
            case TextDelta() | ReasoningDelta() | ReasoningItem() if self._calling:
                if isinstance(event, TextDelta):
                    self._writing = False  # what looked like a call is text after all
                self._wait_on()
                if not self._suppress_tail:
                    return (event,)
                self._tail.append(event)
                return ()
            case ResponseEnd() if self._calling and self._stop:
                return [event, *self._cut("the response ended")]
            case ToolOutput() if self._calling and self._stop and not self._told:
                return [event, *self._cut("the backend answered a call")]
            case TurnEnd():
                self._drop_tail()
                self.deadline = inf
                return (event,)
            case _:
                return (event,)

    def _silence_after(self, start: TurnStart) -> float:
        match start.response_ends:
            case "told":
                return inf
            case "untold":
                return self._grace
            case _:
                return max(UNSURE, self._grace)

    def _wait_on(self) -> None:
        """The model is at work: what it writes may become a call."""
        if self._calling and self._stop:
            self.deadline = self._now + self._silence

    def wake(self, now: float) -> Sequence[Event]:
        self._now = now
        return self._cut("no further call came", truncated=self._writing)

    def close(self) -> Sequence[Event]:
        self._drop_tail()
        return ()

    def _call(self, event: ToolCall) -> Sequence[Event]:
        between, self._tail = self._tail, []
        self._calling = True
        self._writing = False
        if not self._stop:
            return [*between, event]
        if self._mode == "first":
            return [*between, event, *self._cut("the first call")]
        self._wait_on()
        return [*between, event]

    def _cut(self, cause: str, *, truncated: bool = False) -> Sequence[Event]:
        self.mark(cause)
        self.done = True
        self.deadline = inf
        self._drop_tail()
        end = TurnEnd("tool_calls", calls_truncated=truncated, choice=self._choice, at=self._now)
        return self.make(end)

    def _drop_tail(self) -> None:
        for event in self._tail:
            self.drop(event, TAIL)
        self._tail.clear()
