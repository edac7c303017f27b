"""What became of every event: emitted, folded into another, or dropped with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, field

UNEXPLAINED = "unexplained by the stage"


@define
class StageLedger:
    """One stage's books. After the run, taken + made = given + folded + dropped."""

    name: str = ""
    taken: int = 0
    given: int = 0
    made: int = 0
    folded: Counter[str] = field(factory=Counter[str])
    dropped: Counter[str] = field(factory=Counter[str])
    notes: Counter[str] = field(factory=Counter[str])
    """Remarks for the log."""
    marks: Counter[str] = field(factory=Counter[str])
    """What the stage decided, from a few fixed words: for the metrics."""

    def count_taken(self, events: int) -> None:
        self.taken += events

    def count_given(self, events: int) -> None:
        self.given += events

    @property
    def difference(self) -> int:
        """Events that went in or were made, less those accounted for."""
        return self.taken + self.made - self.given - self.folded.total() - self.dropped.total()

    def settle(self) -> None:
        """Close the books of a stage that kept none: the rest was dropped, or made, silently."""
        rest = self.difference
        if rest > 0:
            self.dropped[UNEXPLAINED] += rest
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
