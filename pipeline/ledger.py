"""What became of every event: emitted, folded into another, or dropped with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import define, field

UNEXPLAINED = "unexplained by the stage"
MOST_NOTES: Final = 20
MORE_NOTES = "more remarks than are kept"


class Tally(dict[str, int]):
    """How often of each word."""

    __slots__ = ()

    def __missing__(self, word: str) -> int:
        return 0

    def total(self) -> int:
        return sum(self.values())

    def plus(self, word: str, times: int) -> Tally:
        """The same with a word counted so many times more."""
        self[word] += times
        return self


class _Nothing(Tally):
    """No word at all: every stage of every turn has four tallies, and nearly all stay like this."""

    __slots__ = ()

    def __setitem__(self, word: str, times: int) -> None:
        raise TypeError("the books are kept with drop(), fold(), note() and mark()")

    def plus(self, word: str, times: int) -> Tally:
        return Tally({word: times})


NOTHING: Final[Tally] = _Nothing()


@define
class StageLedger:
    """One stage's books. After the run, taken + made = given + folded + dropped."""

    name: str = ""
    taken: int = 0
    given: int = 0
    made: int = 0
    folded: Tally = NOTHING
    dropped: Tally = NOTHING
    notes: Tally = NOTHING
    """Remarks for the log."""
    marks: Tally = NOTHING
    """What the stage decided, from a few fixed words: for the metrics."""

    def drop(self, reason: str, events: int = 1) -> None:
        self.dropped = self.dropped.plus(reason, events)

    def fold(self, reason: str) -> None:
        self.folded = self.folded.plus(reason, 1)

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) >= MOST_NOTES:
            text = MORE_NOTES  # a remark may hold a name that the model invented
        self.notes = self.notes.plus(text, 1)

    def mark(self, decision: str) -> None:
        self.marks = self.marks.plus(decision, 1)

    def count_taken(self, events: int) -> None:
        self.taken += events

    @property
    def difference(self) -> int:
        """Events that went in or were made, less those accounted for."""
        return self.taken + self.made - self.given - self.folded.total() - self.dropped.total()

    def settle(self, reason: str = UNEXPLAINED) -> None:
        """Close the books of a stage that kept none: the rest was dropped, or made, silently."""
        rest = self.difference
        if rest > 0:
            self.drop(reason, rest)
        elif rest < 0:
            self.made -= rest


@define
class Ledger:
    """The books of one run: every stage in order, and what reached the sink."""

    stages: list[StageLedger] = field(factory=list[StageLedger])
    delivered: int = 0

    def count_delivered(self, events: int) -> None:
        self.delivered += events

    def __iter__(self) -> Iterator[StageLedger]:
        return iter(self.stages)

    def __getitem__(self, name: str) -> StageLedger:
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise LookupError(f"no stage named {name!r} in this run; there are: {known}")
