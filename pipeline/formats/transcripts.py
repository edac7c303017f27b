"""Transcripts: the messages of a backend, as JSON lines or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import inf, isfinite
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from pipeline.loose_json import is_json

LONGEST_LINE: Final = 64 * 1024 * 1024
LONGEST_SKIP: Final = 1024 * 1024 * 1024
_SSE_FIELDS: Final = (b"event:", b"id:", b"retry:", b":")
_NUMBER: Final = (int, float)
_decode: Final = msgspec.json.Decoder().decode


class Record(NamedTuple):
    """One message of a transcript: its line, its time and its content."""

    line: int
    message: Any
    at: float | None = None
    problem: str | None = None


def read_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Every message of a transcript, and every unreadable line.

    Accepts JSON lines as the app-server writes them (their time is `emittedAtMs`, where
    they have it), recorded ones of the form `{"at": seconds, "message": {…}}`, and SSE.
    """
    data: list[bytes] = []
    number = 0
    for number, raw in enumerate(lines, 1):
        if raw.startswith(b"{") and not data:
            yield _record(number, raw)
            continue
        line = raw.strip(b"\r\n\t \xef\xbb\xbf")
        if line.startswith(b"data:"):
            if data and _is_whole(data):  # some backends write no blank line between events
                yield _record(number - 1, b"\n".join(data))
                data.clear()
            data.append(line[5:].strip())
            continue
        if data and not line.startswith(_SSE_FIELDS):
            yield _record(number - 1, b"\n".join(data))
            data.clear()
        if line and not line.startswith(_SSE_FIELDS):
            yield _record(number, line)
    if data:
        yield _record(number, b"\n".join(data))


def _is_whole(data: list[bytes]) -> bool:
    try:
        _decode(b"\n".join(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data == [b"[DONE]"]
    return True


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """A file's lines, each cut to the longest allowed length.

    The rest of a longer line is skipped; ValueError if it never ends.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            for _ in range(LONGEST_SKIP // LONGEST_LINE):
                rest = file.readline(LONGEST_LINE)
                if not rest or rest.endswith(b"\n"):
                    break
            else:
                raise ValueError("a line never ends")
        yield line


def _record(number: int, line: bytes) -> Record:
    if len(line) > LONGEST_LINE:
        return Record(number, None, problem="a line longer than 64 MiB")
    if line == b"[DONE]":
        return Record(number, {"type": "[DONE]"})
    try:
        message = parse_line(line)
    except ValueError:
        return Record(number, None, problem="a line that is not JSON")
    if not is_json(message):
        return Record(number, message)
    if isinstance(message.get("at"), _NUMBER) and "message" in message:
        return Record(number, message["message"], at=_seconds(message["at"], 1.0))
    return Record(number, message, at=_seconds(message.get("emittedAtMs"), 0.001))


def _seconds(value: object, unit: float) -> float | None:
    """A time in seconds; None for anything that is not a time."""
    try:
        seconds = value * unit if isinstance(value, _NUMBER) else inf
    except OverflowError:
        return None
    return seconds if isfinite(seconds) else None


def parse_line(line: bytes) -> Any:
    """One JSON value. Invalid Unicode is replaced; other errors raise ValueError."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_and_mend(line)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _parse_and_mend(line: bytes) -> Any:
    """The value with what cannot be encoded replaced by U+FFFD.

    msgspec refuses lone surrogates, which JavaScript backends can write; json keeps them.
    """
    try:
        value = json.loads(line.decode("utf-8", "replace"))
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    return json.loads(text.decode("utf-8", "replace"))
