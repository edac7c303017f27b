"""Custom tools take free text; backends know them as functions of one string."""

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
    """The free text in a function's arguments; arguments of another form are the text."""
    try:
        text = as_json(msgspec.json.decode(arguments)).get("input")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments
