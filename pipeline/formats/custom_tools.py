"""Tools that take free text, as the functions of one string that a backend knows them as."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pipeline.loose_json import as_json

PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def to_arguments(text: str) -> str:
    """Free text as a function's arguments."""
    return msgspec.json.encode({"input": text}).decode()


def to_text(arguments: str) -> str:
    """A function's arguments as the free text in them; what holds none is the text itself."""
    try:
        text = as_json(msgspec.json.decode(arguments)).get("input")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments
