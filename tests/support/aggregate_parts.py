"""What goes through the stage that makes calls, and what came of it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen
from hypothesis import settings

from pipeline.events import (
    Event,
    Failed,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.segment import Stages, without_ticks
from pipeline.turn import OutputMode, Tool, Turn
from stages.aggregate_tool_calls import AggregateOptions, AggregateToolCalls

Policy: TypeAlias = Literal["text", "call", "fail"]
POLICIES: Final[tuple[Policy, ...]] = ("text", "call", "fail")

law: Final = settings(deadline=None)
TURN: Final = Turn(tools=(Tool("f"), Tool("g")))
KNOWN: Final = "<use_tool><name>f</name><a>1</a></use_tool>"
UNKNOWN: Final = "<use_tool><name>other</name></use_tool>"
SENTINEL: Final = '<tool_call>{"name": "g", "arguments": {"n": 1.0}}</tool_call>'
HALF: Final = f"<use_tool><name>f</name>{UNKNOWN}"
"""An unclosed block: the whole one inside it counts only when no more text comes."""
NAMELESS: Final = ToolCallFragment("k0", "c0", whole="{}", done=True)


@frozen
class Played:
    events: list[Event]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def calls(self) -> list[ToolCall]:
        return [event for event in self.events if isinstance(event, ToolCall)]

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(call.name, call.arguments) for call in self.calls]

    @property
    def ends(self) -> list[str | None]:
        """The code of each failure and the reason of each end, in order."""
        return [
            event.error.code if isinstance(event, Failed) else event.reason
            for event in self.events
            if isinstance(event, Failed | TurnEnd)
        ]


def play(
    *events: Event, policy: Policy = "text", turn: Turn = TURN, output_mode: OutputMode = "auto"
) -> Played:
    """Put events through the stage, and see that its own books balance, before they are settled."""
    stage = AggregateToolCalls(AggregateOptions(policy, output_mode))
    stage.begin(turn)
    stages = Stages([stage])
    out: list[Event] = []
    for event in events:
        out += () if stages.done else without_ticks(stages.take((event,)))
    closing = () if stages.done else stage.close()
    stage.ledger.given += len(closing)
    assert stage.ledger.difference == 0
    return Played([*out, *closing])
