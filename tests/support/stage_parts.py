"""What the tests of single stages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.events import (
    Event,
    Failed,
    ToolCall,
    TurnEnd,
    Usage,
)
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Stage
from pipeline.turn import Turn


def through(
    stage: Callable[[], Stage],
    *events: Event,
    turn: Turn | None = None,
    ledger: Ledger | None = None,
) -> list[Event]:
    return Pipeline([("stage", stage)]).process(events, turn, ledger=ledger)


def call(letter: str, at: float = 0.0, index: int = 0, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call_{letter}", letter, arguments, index=index, at=at)


def failure_code(events: Sequence[Event]) -> str | None:
    return next((event.error.code for event in events if isinstance(event, Failed)), None)


END = TurnEnd("completed")
USAGE = Usage(1, 2, 3)
