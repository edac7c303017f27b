"""The load that a request describes in its user message."""

from __future__ import annotations

from typing import Final

import msgspec

MODEL: Final = "gpt-5"
"""The model's name; the backend ignores it."""


class LoadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number of deltas and the seconds between them; 0 means full speed."""

    deltas: int = 1
    gap: float = 0.0
    after: float = 0.0
    """Seconds before the first delta."""
    tag: str = ""
    """A label for the backend's log."""

    @classmethod
    def read(cls, said: str) -> LoadRequest:
        """The load in a message; any other text requests one delta."""
        try:
            return msgspec.json.decode(said, type=cls)
        except (msgspec.DecodeError, ValueError):
            return cls()

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()
