"""Ends the text before the first of the sequences that the client named, and the turn with it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf

from attrs import evolve

from pipeline.events import CallProgress, Event, TextDelta, TurnEnd
from pipeline.stage import NOTHING, Stage
from pipeline.turn import Turn

HELD = "may begin a stop sequence"
STOPPED = "begins a stop sequence"


class StopAtSequences(Stage):
    """No text from the earliest sequence on passes, however the text is split into deltas.

    Text is held only while it is the beginning of a sequence. No sequence spans two messages, nor
    the calls between two pieces of text.
    """

    def __init__(self) -> None:
        super().__init__()
        self._search: SequenceSearch | None = None
        self._last = TextDelta("")  # what is held belongs to its message

    def begin(self, turn: Turn) -> None:
        self._search = SequenceSearch(turn.stop) if turn.stop else None

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        return text if self._search is None else None

    def feed(self, event: Event) -> Sequence[Event]:
        if self._search is None or isinstance(event, CallProgress):
            return (event,)
        if not isinstance(event, TextDelta):
            released = self._release(self._search, event.at)
            return [*released, *self._unless_done(event)] if released else (event,)
        released = NOTHING
        if (event.item_id, event.choice) != (self._last.item_id, self._last.choice):
            released = self._release(self._search, event.at)
        if self.done:
            return [*released, *self.drop(event, STOPPED)]
        self._last = event
        taken = self._text(self._search, event)
        return [*released, *taken] if released else taken

    def close(self) -> Sequence[Event]:
        return NOTHING if self._search is None else self._release(self._search, self._last.at)

    def _text(self, search: SequenceSearch, event: TextDelta) -> Sequence[Event]:
        passed = search.feed(event.text)
        if search.found:
            return self._stop(event, passed)
        if passed == event.text:
            return (event,)
        if not passed:
            return self.fold(event, HELD)
        return self.swap(event, evolve(event, text=passed))

    def _release(self, search: SequenceSearch, at: float) -> Sequence[Event]:
        """Nothing more can be added to what is held: it is no sequence, or hides a shorter one."""
        passed = search.close()
        rest = self.make(evolve(self._last, text=passed, at=at)) if passed else NOTHING
        return [*rest, *self._end(self._last.choice, at)] if search.found else rest

    def _stop(self, event: TextDelta, passed: str) -> Sequence[Event]:
        self.drop(event, STOPPED)
        before = self.make(evolve(event, text=passed)) if passed else NOTHING
        return [*before, *self._end(event.choice, event.at)]

    def _end(self, choice: int, at: float) -> Sequence[Event]:
        self.done = True
        return self.make(TurnEnd("stop", choice=choice, at=at))

    def _unless_done(self, event: Event) -> Sequence[Event]:
        return self.drop(event, "came after a stop sequence") if self.done else (event,)


class SequenceSearch:
    """Looks for the earliest of several sequences in text that comes in pieces, in linear time.

    `feed` and `close` give out the text that cannot belong to a sequence any more. Where two
    overlap, the one that begins first counts, even if the other one is whole before.
    """

    def __init__(self, sequences: Iterable[str]) -> None:
        self._matchers = [_Matcher(sequence) for sequence in dict.fromkeys(sequences)]
        firsts = sorted({matcher.sequence[0] for matcher in self._matchers})
        self._may_begin = re.compile("|".join(map(re.escape, firsts)))
        self._held: deque[str] = deque()
        self._given = 0  # places in the text are counted from its first character
        self._seen = 0
        self._pending = 0  # how much of the text's end may be the beginning of a sequence
        self._earliest = inf  # where the first whole sequence begins
        self.found = False

    def feed(self, text: str) -> str:
        """Take the next piece; give what is now known to stand before every sequence."""
        if not self._held and not self._may_begin.search(text):
            self._seen += len(text)
            self._given = self._seen
            return text
        self._held.append(text)
        self._read(text)
        if self.found:
            return self._give(int(self._earliest))
        return self._give(self._seen - self._pending)

    def close(self) -> str:
        """The text is over: what looked like a longer sequence is none. The next text is new."""
        self.found = self.found or self._earliest < inf
        passed = self._give(int(self._earliest) if self.found else self._seen)
        for matcher in self._matchers:
            matcher.matched = 0
        self._pending = 0
        return passed

    def _read(self, text: str) -> None:
        start, place = self._seen, 0
        while place < len(text):
            if not self._pending:
                begins = self._may_begin.search(text, place)
                if begins is None:
                    break
                place = begins.start()
            place += 1
            self._pending = 0
            for matcher in self._matchers:
                if matcher.advance(text[place - 1]):
                    begun = start + place - len(matcher.sequence)
                    self._earliest = min(self._earliest, begun)
                self._pending = max(self._pending, matcher.matched)
            if start + place - self._pending >= self._earliest:
                self.found = True
                return
        self._seen = start + len(text)

    def _give(self, upto: int) -> str:
        given: list[str] = []
        while self._held and self._given < upto:
            piece = self._held.popleft()
            here = min(len(piece), upto - self._given)
            given.append(piece[:here])
            self._given += here
            if here < len(piece):
                self._held.appendleft(piece[here:])
        return "".join(given)


class _Matcher:
    """How much of one sequence the text ends with, the way of Knuth, Morris and Pratt."""

    def __init__(self, sequence: str) -> None:
        self.sequence = sequence
        self.matched = 0
        self._shorter = [0] * len(sequence)
        """For each beginning of the sequence, the longest shorter one that it ends with."""
        for end in range(1, len(sequence)):
            self._shorter[end] = self._longer(self._shorter[end - 1], sequence[end])

    def advance(self, character: str) -> bool:
        """Read on; whether the sequence is whole."""
        self.matched = self._longer(self.matched, character)
        whole = self.matched == len(self.sequence)
        if whole:
            self.matched = 0  # one that begins later cannot be the earliest
        return whole

    def _longer(self, matched: int, character: str) -> int:
        while matched and self.sequence[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + 1 if self.sequence[matched] == character else 0
