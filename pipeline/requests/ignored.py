"""Which parameters of a request have no effect here."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import attrs

from pipeline.loose_json import Json

_SO_ANYWAY: Final[dict[str, Any]] = {
    "store": False,
    "logprobs": False,
    "modalities": ["text"],
    "stream_options.include_obfuscation": False,
}
"""Wishes for what happens in any case: they are not ignored."""


def unread(given: Json, read: Collection[str], prefix: str = "") -> Iterator[str]:
    """The names of those that were given and are not among those that are read."""
    for name, value in given.items():
        path = prefix + name
        granted = path in _SO_ANYWAY and _SO_ANYWAY[path] == value
        if name not in read and value is not None and not granted:
            yield path


def names_of(target: type[Any]) -> tuple[str, ...]:
    """The fields that a class takes from a body."""
    return tuple(field.name for field in attrs.fields(target) if not field.metadata.get("omit"))
