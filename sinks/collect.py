"""Keeps the events themselves: for tests and for looking."""

from __future__ import annotations

from pipeline.events import Event
from pipeline.stage import Receive


class Collect:
    """Returns every event that reached the end, in order."""

    async def run(self, receive: Receive) -> list[Event]:
        events: list[Event] = []
        async for burst in receive:
            events += burst
        return events
