"""Writes down what a backend sent and what it was read as: for learning what a new one sends."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import attrs
import msgspec
from attrs import frozen

from pipeline.events import Event
from pipeline.formats.transcripts import Record
from pipeline.options import flag

DEFAULT_FILE: Final = "backend-events.jsonl"
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})


@frozen(slots=False)
class DumpOptions:
    """Where backend messages are written, if anywhere."""

    dump_events: str = flag(
        "CODEX_DUMP_SSE",
        "",
        "write every backend message and what it was read as to this file (1 means "
        "backend-events.jsonl): for learning what a new backend sends",
        group="source",
    )


class EventDump:
    """One JSON line a message: the message, the events it became, or why it became none.

    The file holds prompts and arguments, so only its owner can read it.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    @classmethod
    def from_setting(cls, value: str) -> EventDump | None:
        """The dump an operator asked for: 1 for the usual file, else a path; none if unset."""
        if value.lower() in _OFF:
            return None
        return cls(DEFAULT_FILE if value.lower() in _ON else value)

    def __call__(self, record: Record, events: Iterable[Event], reasons: list[str]) -> None:
        line = {
            "line": record.line,
            "message": record.message,
            "events": [{"event": type(event).__name__, **attrs.asdict(event)} for event in events],
            "dropped": [record.problem] if record.problem else reasons,
        }
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()
