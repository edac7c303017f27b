"""Stages run one after the other on a burst, without trio: the one way to drive a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from pipeline.events import Event
from pipeline.stage import Stage

LATE = "came after the end"
UNREAD = "nobody downstream read it"


class Lane:
    """A run of stages that share a task. A lane of one and a lane of all give the same events."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = tuple(stages)
        self.deadline = inf
        self.done = False

    def take(self, events: Sequence[Event]) -> Sequence[Event]:
        """Put a burst through every stage."""
        return self._pour(events, 0)

    def wake(self) -> Sequence[Event]:
        """Wake the stages whose deadline is the one that passed."""
        out: list[Event] = []
        due = self.deadline
        for position, stage in enumerate(self.stages):
            if stage.deadline <= due < inf:
                out += self._pour(_given(stage, _woken(stage)), position + 1)
        self._look()
        return out

    def close(self) -> Sequence[Event]:
        """The input ended: collect what every stage still holds, first stage first."""
        out: list[Event] = []
        for position, stage in enumerate(self.stages):
            if not stage.done:
                out += self._pour(_given(stage, stage.close()), position + 1)
        for stage in self.stages:
            stage.ledger.settle()
        return out

    def abandon(self, out: Sequence[Event]) -> None:
        """Nobody reads any more: settle the books, and remark on nothing that follows from that."""
        remarks = [stage.ledger.notes.copy() for stage in self.stages]
        self.unread(out)
        self.unread(self.close())
        for stage, before in zip(self.stages, remarks, strict=True):
            stage.ledger.notes = before

    def unread(self, events: Sequence[Event]) -> None:
        """Enter into the books that what the last stage gave reached nobody."""
        if self.stages and events:
            ledger = self.stages[-1].ledger
            ledger.given -= len(events)
            ledger.dropped[UNREAD] += len(events)

    def _pour(self, events: Sequence[Event], position: int) -> Sequence[Event]:
        for stage in self.stages[position:]:
            if not events:
                break
            events = _step(stage, events)
        self._look()
        return events

    def _look(self) -> None:
        self.deadline = min((stage.deadline for stage in self.stages), default=inf)
        self.done = any(stage.done for stage in self.stages)


def _step(stage: Stage, events: Sequence[Event]) -> Sequence[Event]:
    """Feed a burst to one stage, waking it first where its deadline lies before an event."""
    out: list[Event] = []
    feed = stage.feed
    for fed, event in enumerate(events):
        if event.at >= stage.deadline:
            out += _woken(stage)
        if stage.done:
            stage.ledger.dropped[LATE] += len(events) - fed
            break
        out += feed(event)
    stage.ledger.taken += len(events)
    return _given(stage, out)


def _woken(stage: Stage) -> Sequence[Event]:
    """Wake a stage once: it is not due again unless it says so."""
    due, stage.deadline = stage.deadline, inf
    return stage.wake(due)


def _given(stage: Stage, events: Sequence[Event]) -> Sequence[Event]:
    stage.ledger.given += len(events)
    return events
