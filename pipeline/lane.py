"""Stages run one after the other on a burst, without trio: the one way to drive a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, TypeAlias, cast

from pipeline.events import Event, TextDelta
from pipeline.ledger import Tally
from pipeline.stage import Stage

LATE = "came after the end"
UNREAD = "nobody downstream read it"
ONLY_TEXT: Final = frozenset({TextDelta})
WatchStage: TypeAlias = Callable[[Stage, Sequence[Event], Sequence[Event]], None]


class Lane:
    """A run of stages that share a task. A lane of one and a lane of all give the same events.

    `watch` is called with each stage, what it was given and what it returned.
    """

    def __init__(self, stages: Iterable[Stage], watch: WatchStage | None = None) -> None:
        self.stages = tuple(stages)
        self._watch = watch
        self.deadline = inf
        self.done = False
        self._skimmed = 0
        """How many events every stage let pass at a glance, and are not in the books yet."""
        self._look()

    def take(self, events: Sequence[Event]) -> Sequence[Event]:
        """Put a burst through every stage; most of them let text pass at a glance."""
        text = _only_text(events)
        if not text or self.done or self.deadline < inf or self._watch is not None:
            return self._pour(events, 0)
        for position, stage in enumerate(self.stages):
            if not stage.skim(text):
                _note_skimmed(self.stages[:position], len(text))
                return self._pour(events, position)
        self._skimmed += len(text)
        return events

    def wake(self) -> Sequence[Event]:
        """Wake the stages whose deadline is the one that passed."""
        out: list[Event] = []
        due = self.deadline
        for position, stage in enumerate(self.stages):
            if stage.deadline <= due < inf:
                woken = _given(stage, _woken(stage))
                self._show(stage, (), woken)
                out += self._pour(woken, position + 1)
        self._look()
        return out

    def close(self) -> Sequence[Event]:
        """The input ended: collect what every stage still holds, first stage first."""
        out: list[Event] = []
        for position, stage in enumerate(self.stages):
            if not stage.done:
                rest = _given(stage, stage.close())
                self._show(stage, (), rest)
                out += self._pour(rest, position + 1)
        _note_skimmed(self.stages, self._skimmed)
        self._skimmed = 0
        for stage in self.stages:
            stage.ledger.settle()
        return out

    def abandon(self) -> None:
        """Nobody reads any more: settle the books, and remark on nothing that follows from that."""
        remarks = [Tally(stage.ledger.notes) for stage in self.stages]
        self.unread(self.close())
        for stage, before in zip(self.stages, remarks, strict=True):
            stage.ledger.notes = before

    def unread(self, events: Sequence[Event]) -> None:
        """Enter into the books that what the last stage gave reached nobody."""
        if self.stages and events:
            ledger = self.stages[-1].ledger
            ledger.given -= len(events)
            ledger.drop(UNREAD, len(events))

    def refuse(self, events: Sequence[Event]) -> None:
        """Enter into the books that events came which nobody downstream wants."""
        if self.stages:
            ledger = self.stages[0].ledger
            ledger.taken += len(events)
            ledger.drop(UNREAD, len(events))

    def _pour(self, events: Sequence[Event], position: int) -> Sequence[Event]:
        """Put a burst through the stages from a position on."""
        text = _only_text(events)
        looked_at = False
        for stage in self.stages[position:] if position else self.stages:
            if not events:
                break
            if text and stage.deadline == inf and not stage.done and stage.skim(text):
                ledger = stage.ledger
                ledger.taken += len(text)
                ledger.given += len(text)
                self._show(stage, text, text)
                continue
            looked_at = True
            given, events = events, _step(stage, events)
            self._show(stage, given, events)
            text = _only_text(events) if text else ()
        if looked_at:
            self._look()
        return events

    def _show(self, stage: Stage, given: Sequence[Event], returned: Sequence[Event]) -> None:
        if self._watch is not None:
            self._watch(stage, given, returned)

    def _look(self) -> None:
        deadline, done = inf, False
        for stage in self.stages:
            if stage.done:
                done = True
            deadline = min(deadline, stage.deadline)
        self.deadline, self.done = deadline, done


def _only_text(events: Sequence[Event]) -> Sequence[TextDelta]:
    """The events, if all of them are text; else none."""
    return cast("Sequence[TextDelta]", events) if ONLY_TEXT.issuperset(map(type, events)) else ()


def _note_skimmed(stages: Sequence[Stage], events: int) -> None:
    for stage in stages:
        stage.ledger.taken += events
        stage.ledger.given += events


def _step(stage: Stage, events: Sequence[Event]) -> Sequence[Event]:
    """Feed a burst to one stage, waking it first where its deadline lies before an event."""
    out: list[Event] = []
    feed = stage.feed
    for fed, event in enumerate(events):
        if event.at >= stage.deadline:
            out += _woken(stage)
        if stage.done:
            stage.ledger.drop(LATE, len(events) - fed)
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
