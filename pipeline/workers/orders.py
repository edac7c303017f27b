"""What a worker is told when it starts."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
from attrs import evolve, frozen

from pipeline.settings import Settings


@frozen
class Orders:
    """One worker's part. They travel over a pipe: secrets are on no command line."""

    number: int
    settings: Settings
    """The worker's own share of them."""
    listeners: tuple[int, ...]
    """Descriptors of the sockets to listen on."""
    line: int
    """The descriptor of the line to the parent."""
    children: int = 0
    """How many app-servers the parent runs for its workers."""
    addresses: tuple[str, ...] = ()
    """App-servers that somebody else runs."""
    codex: str = ""
    """Which Codex the parent's app-servers are."""
    backend: str = ""
    """What runs the turns, for people."""
    workspace: str = ""

    def to_json(self) -> bytes:
        return json.dumps(attrs.asdict(self)).encode()  # which writes what is not UTF-8, too

    @classmethod
    def from_json(cls, data: bytes) -> Orders:
        return _converter.structure(json.loads(data), cls)


def share_of(settings: Settings, store: Path | str) -> Settings:
    """What one of several workers may take on: its part of every limit, rounded up."""

    def part(limit: int) -> int:
        return ceil(limit / settings.workers)

    return evolve(
        settings,
        concurrency=part(settings.concurrency),
        concurrency_per_key=part(settings.concurrency_per_key),
        queue_size=part(settings.queue_size),
        requests_per_minute=part(settings.requests_per_minute),
        codex_hold_turns_max=part(settings.codex_hold_turns_max),
        store=str(store),
    )


def _to_settings(told: dict[str, Any], _: type[Settings]) -> Settings:
    return Settings(**told)  # they were read once, and are not read again


_converter: Final = cattrs.Converter()
_converter.register_structure_hook(Settings, _to_settings)
