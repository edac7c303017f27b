"""Counts chunks in raw bytes, and measures the transit time of stamped ones."""

from __future__ import annotations

import re
import time
from typing import Final

from attrs import Factory, define, field, frozen

READ: Final = 65_536
"""The size of one read."""
BACKEND_CHUNK: Final = b"item/agentMessage/delta"
SERVER_CHUNK: Final = b'"delta":{"content":'
_STAMP: Final = re.compile(rb'(?:"delta"|"content"):"(\d{9,}) ')


@define
class ChunkCounter:
    """Counts whole lines only, so that no chunk is missed or counted twice between reads.

    It parses nothing, because the load's own CPU is lost for the server under test.
    """

    marker: bytes
    """The bytes that every chunk contains once."""
    stamped: bool = False
    chunks: int = 0
    first: float = 0.0
    """When the first chunk came."""
    transits: list[float] = field(factory=list[float])
    """The transit time of each chunk, in seconds."""
    arrivals: list[float] = field(factory=list[float])
    _rest: bytes = b""

    def reset(self) -> None:
        """Reset all counts."""
        self.chunks = 0
        self.transits.clear()
        self.arrivals.clear()

    def feed(self, data: bytes) -> bytes:
        """Count the chunks in data; returns the complete lines."""
        now = time.monotonic_ns()
        whole, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        new = whole.count(self.marker)
        if new and not self.chunks:
            self.first = now / 1e9
        self.chunks += new
        if self.stamped and new:
            self.arrivals += [now / 1e9] * new
            self.transits += [(now - int(stamp)) / 1e9 for stamp in _STAMP.findall(whole)]
        return whole + end


@frozen
class LoadResult:
    """The result of a load."""

    chunks: int
    seconds: float
    cpu: float
    """The CPU seconds of the server; 0 if there is no server."""
    firsts: list[float]
    """The time to the first chunk of each stream."""
    transits: list[float]
    counters: list[ChunkCounter] = Factory(list[ChunkCounter])
    memory: int = 0
    """The resident bytes of the server at the end, if measured."""

    @property
    def rate(self) -> float:
        return self.chunks / self.seconds

    @property
    def micros(self) -> float:
        """CPU microseconds a chunk."""
        return self.cpu / max(1, self.chunks) * 1e6
