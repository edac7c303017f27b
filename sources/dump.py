"""Dumps each message of a backend with the events it became, to learn about a new backend."""

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
    """Where backend messages are dumped."""

    dump_events: str = flag(
        "CODEX_DUMP_SSE",
        "",
        "dump every backend message, with the events it became, to this file (1: "
        "backend-events.jsonl), to learn about a new backend",
        group="source",
    )


class EventDump:
    """One JSON line for each message: the message, its events, or why it became none.

    The file holds prompts and arguments, so only its owner can read it.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    @classmethod
    def from_setting(cls, value: str) -> EventDump | None:
        """The dump of the setting: 1 means the default file, else a path; None if off."""
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
