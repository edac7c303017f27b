"""Keeps the events themselves: for tests and for looking."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.errors import Failure
from pipeline.events import Event, ToolCall, TurnEnd


class Collect:
    """Keeps every event that reached the end, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.finished = False

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(event.call_id for event in self.events if isinstance(event, ToolCall))

    def feed(self, burst: Iterable[Event]) -> bytes:
        new = tuple(burst)
        self.events += new
        self.finished = self.finished or any(isinstance(event, TurnEnd) for event in new)
        return b""

    def keepalive(self) -> bytes:
        return b""

    def fail(self, failure: Failure) -> bytes:
        return b""

    def result(self) -> list[Event]:
        """The events, whether the turn has ended or not."""
        return self.events
