"""A fast path for text deltas, the most frequent message, decoded many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

HEAD: Final = b'{"method":"item/agentMessage/delta","params":{"threadId":"'
"""How Codex begins the line of a delta. A line that begins otherwise is decoded normally."""
_NAME: Final = len(HEAD)


class Delta(msgspec.Struct, rename="camel", frozen=True):
    """A text delta of the app-server."""

    turn_id: str
    item_id: str
    delta: str


class _Line(msgspec.Struct, frozen=True):
    params: Delta


_decode: Final = msgspec.json.Decoder(_Line).decode_lines


def named_thread(line: bytes) -> bytes:
    """The thread id in a line with such a head, as it is written there."""
    return line[_NAME : line.find(b'"', _NAME)]


def read_deltas(lines: Sequence[bytes]) -> list[Delta] | None:
    """The deltas of the lines, in order; None if one of them is not what its head suggests."""
    try:
        read = _decode(b"\n".join(lines))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [line.params for line in read] if len(read) == len(lines) else None
