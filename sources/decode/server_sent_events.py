"""Server-sent events out of bytes, wherever the bytes were split."""

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
    """One event has more bytes than anybody may be made to hold."""


class EventStream:
    """One byte at a time gives the same events as everything at once.

    Lines end with LF, CR or CRLF; the data lines of one event are joined by LF; comments and
    unknown fields mean nothing. That is the WHATWG's event stream, but for its end: see `close`.
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
        """The events that are complete by now. TooLongError when one grows over the limit."""
        events: list[ServerSentEvent] = []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the other half of a CRLF that was split
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
        """The last event, where the stream ended without the blank line that it is owed.

        A standard reader throws it away, as it may be half of one. Half of a JSON object is no
        JSON, so ours is found out when it is read.
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
            self._held -= size  # only what is kept counts
            if field == b"event":
                self._name = value
