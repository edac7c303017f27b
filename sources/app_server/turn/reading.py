"""What a backend delivered for one turn, as events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pipeline.events import Burst, Event
from pipeline.formats.transcripts import Record, parse_line
from pipeline.loose_json import Json, as_json
from sources.app_server.protocol.mailbox import Delivery, Letter
from sources.app_server.protocol.names import Aliases
from sources.app_server.protocol.thread import to_client
from sources.app_server.turn.record import Recorder
from sources.decode.deltas import read_deltas
from sources.decode.turn_decoder import TurnDecoder, Watcher


class TurnReader:
    """Reads deltas together and everything else one by one; who reads along sees each message."""

    def __init__(
        self,
        decoder: TurnDecoder,
        aliases: Aliases,
        record: Recorder | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self._decoder = decoder
        self._aliases = aliases
        self._record = record
        self._watch = watch

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    def read_all(self, deliveries: Sequence[Delivery]) -> Burst:
        """The events in them, in order, each with the time it came."""
        if len(deliveries) == 1:  # as nearly always
            return self.read(deliveries[0])
        return tuple(event for delivery in deliveries for event in self.read(delivery))

    def read(self, delivery: Delivery) -> Burst:
        """The events in it, in order."""
        letters, at = delivery.letters, delivery.at
        if self._record is not None or self._watch is not None:
            return tuple(self._one_by_one(letters, at))
        lines = [letter for letter in letters if isinstance(letter, bytes)]
        if len(lines) == len(letters):  # as nearly always
            return tuple(self._together(lines, at))
        events: list[Event] = []
        for _, run in groupby(letters, type):
            alike = list(run)
            lines = [letter for letter in alike if isinstance(letter, bytes)]
            events += self._together(lines, at) if lines else self._one_by_one(alike, at)
        return tuple(events)

    def _together(self, lines: Sequence[bytes], at: float) -> Sequence[Event]:
        deltas = read_deltas(lines)
        said = None if deltas is None else self._decoder.say_all(deltas, at)
        return self._one_by_one(lines, at) if said is None else said

    def _one_by_one(self, letters: Sequence[Letter], at: float) -> Sequence[Event]:
        events: list[Event] = []
        for letter in letters:
            try:
                message = message_of(letter)
            except ValueError:
                self._decoder.unreadable("a line that is not JSON")
                continue
            message = to_client(message, self._aliases)
            if self._record is not None:
                self._record.write(message, at)
            events += self._decoder.feed_watched(Record(0, message), at, self._watch)
        return events


def message_of(letter: Letter) -> Json:
    """A letter's message. ValueError if the line of a delta turns out to be none."""
    return as_json(parse_line(letter)) if isinstance(letter, bytes) else letter.message
