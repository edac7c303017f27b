"""Parses server-sent events from bytes, however they are split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pipeline.formats.transcripts import LONGEST_LINE

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event: its name, empty where the stream gave none, and its data."""

    name: bytes
    data: bytes


class TooLongError(ValueError):
    """One event exceeds the size limit."""


class EventStream:
    """Gives the same events for the same bytes, however they are split.

    Lines end with LF, CR or CRLF; the data lines of one event are joined by LF; comments and
    unknown fields are ignored. This is the WHATWG's event stream, except for its end: see `close`.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._line = bytearray()
        self._name = b""
        self._data: list[bytes] = []
        self._held = 0
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that are complete now. TooLongError if one exceeds the limit."""
        events: list[ServerSentEvent] = []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a split CRLF
            self._after_cr = False
        if not chunk:
            return events
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._hold(piece)
            line = bytes(self._line)
            self._line.clear()
            events += self._take(line)
        self._hold(rest)
        return events

    def close(self) -> list[ServerSentEvent]:
        """The last event, if the stream ended without its blank line.

        A standard reader drops it, because it may be incomplete. Here an incomplete event is
        recognized later, because half of a JSON object is not JSON.
        """
        return [*self._take(bytes(self._line)), *self._take(b"")]

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._longest:
            raise TooLongError(f"an event of more than {self._longest} bytes")
        self._line += piece

    def _take(self, line: bytes) -> Iterator[ServerSentEvent]:
        size = len(line)
        if self._at_start:
            line = line.removeprefix(BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            if self._data:
                yield ServerSentEvent(self._name, b"\n".join(self._data))
            self._name, self._held = b"", 0
            self._data.clear()
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        else:
            self._held -= size  # ignored lines do not count
            if field == b"event":
                self._name = value
