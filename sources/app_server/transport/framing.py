"""Splits bytes into lines, whatever pieces they arrive in."""

from __future__ import annotations

from typing import Final

LONGEST_LINE: Final = 64 * 1024 * 1024


class LineFramer:
    """Gives the same lines for the same bytes, however they are split.

    A line over the limit is skipped to its end and counted, so that memory stays bounded and the
    following lines are read.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping = False
        self.overlong = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without line ends; blank lines are left out."""
        *ended, rest = data.split(b"\n")
        lines: list[bytes] = []
        if ended:  # the first line may have begun in earlier data
            self._hold(ended[0])
            if not self._skipping:
                lines.append(b"".join(self._parts).strip())
            self._parts.clear()
            self._held = 0
            self._skipping = False
            whole = [line.strip() for line in ended[1:] if len(line) <= self._longest]
            self.overlong += len(ended) - 1 - len(whole)
            lines += whole
        self._hold(rest)
        return [line for line in lines if line]

    def close(self) -> bytes:
        """The data after the last line end."""
        return b"" if self._skipping else b"".join(self._parts)

    def _hold(self, piece: bytes) -> None:
        if self._skipping or not piece:
            return
        self._held += len(piece)
        if self._held > self._longest:
            self.overlong += 1
            self._skipping = True
            self._parts.clear()
        else:
            self._parts.append(piece)
