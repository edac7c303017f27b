"""Which parameters of a request have no effect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from pipeline.errors import refusal
from pipeline.loose_json import Json

_SO_ANYWAY: Final[dict[str, tuple[Any, ...]]] = {
    "store": (False,),
    "logprobs": (False,),
    "modalities": (["text"],),
    "stream_options.include_obfuscation": (False,),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Values that match what happens anyway: they do not count as ignored."""
_MOST: Final = 50
_LONGEST: Final = 80
_NOT_IN_A_HEADER: Final = re.compile(r"[^!-+\--~]")


def unread(given: Json, read: Collection[str], prefix: str = "") -> Iterator[str]:
    """The given names that are not among those that are read."""
    for name, value in given.items():
        path = prefix + name
        granted = value in _SO_ANYWAY.get(path, ())
        if name not in read and value is not None and not granted:
            yield path


def listed(names: Iterable[str]) -> tuple[str, ...]:
    """Names safe for a header: limited in number and length, printable ASCII, no commas."""
    return tuple(_NOT_IN_A_HEADER.sub("?", name[:_LONGEST]) for name in islice(names, _MOST))


def names_of(target: type[Any]) -> tuple[str, ...]:
    """The fields of a class that a body can set."""
    return tuple(field.name for field in attrs.fields(target) if not field.metadata.get("omit"))


def refuse(names: Sequence[str]) -> None:
    """Raise ProxyError if there is a parameter without effect."""
    if names:
        raise refusal(
            names[0],
            "has no effect, and strict mode rejects such parameters; leave out: "
            + ", ".join(names),
        )
