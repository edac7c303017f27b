"""What a load asks of a backend, in the words of the user's message."""

from __future__ import annotations

from typing import Final

import msgspec

MODEL: Final = "gpt-5"
"""Which model is asked for; the backend has but one."""


class LoadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """So many deltas, so many seconds apart; 0 is as fast as they go."""

    deltas: int = 1
    gap: float = 0.0
    after: float = 0.0
    """How many seconds before the first of them."""
    tag: str = ""
    """Who asks, for the backend's log."""

    @classmethod
    def read(cls, said: str) -> LoadRequest:
        """The request in a message; any other text asks for one delta."""
        try:
            return msgspec.json.decode(said, type=cls)
        except (msgspec.DecodeError, ValueError):
            return cls()

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()
