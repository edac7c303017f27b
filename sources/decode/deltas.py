"""The one message that nearly all of a turn is made of, read many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

HEAD: Final = b'{"method":"item/agentMessage/delta","params":{"threadId":"'
"""How Codex begins the line of a delta. One that begins otherwise is read like any other line."""
_NAME: Final = len(HEAD)


class Delta(msgspec.Struct, rename="camel", frozen=True):
    """A piece of text, as the app-server tells it."""

    turn_id: str
    item_id: str
    delta: str


class _Line(msgspec.Struct, frozen=True):
    params: Delta


_decode: Final = msgspec.json.Decoder(_Line).decode_lines


def named_thread(line: bytes) -> bytes:
    """The thread that a line with such a head belongs to, as it is written there."""
    return line[_NAME : line.find(b'"', _NAME)]


def read_deltas(lines: Sequence[bytes]) -> list[Delta] | None:
    """What the lines say, in order; None where one of them is not what its head promises."""
    try:
        read = _decode(b"\n".join(lines))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [line.params for line in read] if len(read) == len(lines) else None
