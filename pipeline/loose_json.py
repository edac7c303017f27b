"""Tolerant reading of foreign JSON: a wrong type reads as a missing value, never an exception."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

Json: TypeAlias = Mapping[str, Any]


def is_json(value: object) -> TypeGuard[Json]:
    """Whether the value is an object."""
    return isinstance(value, dict)


def as_json(value: object) -> Json:
    """The value if it is an object, else an empty one."""
    return value if is_json(value) else {}


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether the value is an array."""
    return isinstance(value, list)


def as_list(value: object) -> Sequence[Any]:
    """The value if it is an array, else an empty one."""
    return value if is_list(value) else ()


def text_of(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def printable(text: str, longest: int) -> str:
    """The beginning of a foreign text, safe for a log line or a metric."""
    return "".join(c if c.isprintable() else "?" for c in text[:longest])
