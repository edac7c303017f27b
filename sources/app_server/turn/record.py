"""Writes a live turn down as a transcript that replay reads."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import trio
from attrs import frozen

from pipeline.events import ResponseEnds
from pipeline.formats.recording import CUT, HEADER, Header
from pipeline.loose_json import Json, is_json, is_list
from pipeline.options import backend_flag as flag
from pipeline.turn import Turn

_SECRET_KEY: Final = re.compile(r"token|secret|password|api[_-]?key|authorization", re.IGNORECASE)
_SECRET_TEXT: Final = re.compile(r"\b(?:sk-[\w-]{8,}|eyJ[\w-]{10,}\.[\w.-]+|Bearer\s+\S{8,})")
REDACTED: Final = "[redacted]"


@frozen(slots=False)
class RecordOptions:
    """Where live turns are written down, and whether keys are taken out."""

    record_dir: str = flag(
        "PIPELINE_RECORD_DIR",
        "",
        "write every turn there as a transcript that replay reads; it holds prompts and answers",
    )
    record_redact: bool = flag(
        "PIPELINE_RECORD_REDACT",
        False,
        "take keys and tokens out of these transcripts",
    )


class Recorder:
    """One file a turn, readable by its owner only: a header, then what the backend wrote."""

    def __init__(self, folder: Path, *, redact: bool = False) -> None:
        self._redact = redact
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"turn-{uuid4().hex}.jsonl"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._start = trio.current_time()

    def begin(
        self, turn: Turn, *, backend: str, response_ends: ResponseEnds, **facts: bool
    ) -> None:
        """Write the header: what replay must know to decide as it was decided live."""
        header = Header(
            time=time.time(),
            request_id=turn.request_id,
            backend=backend,
            response_ends=response_ends,
            **facts,
            turn=turn,
        ).to_json()
        line = {HEADER: redacted(header) if self._redact else header}
        self._file.write(msgspec.json.encode(line) + b"\n")

    def cut(self, at: float) -> None:
        """Write that the answer ended here, though the backend was not done."""
        self.write({"method": CUT}, at)

    def write(self, message: Json, at: float) -> None:
        line = {
            "at": round(at - self._start, 6),
            "message": redacted(message) if self._redact else message,
        }
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


def redacted(value: Any) -> Any:
    """The value with keys and tokens taken out, wherever they stand."""
    if isinstance(value, str):
        return _SECRET_TEXT.sub(REDACTED, value)
    if is_list(value):
        return [redacted(inner) for inner in value]
    if is_json(value):
        return {
            key: REDACTED if _SECRET_KEY.search(key) and isinstance(inner, str) else redacted(inner)
            for key, inner in value.items()
        }
    return value
