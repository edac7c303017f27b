"""How long to wait for an app-server, and how soon to start it again."""

from __future__ import annotations

import random
from collections import deque

import trio
from attrs import frozen

from pipeline.options import backend_flag as flag


@frozen(slots=False)
class RecycleOptions:
    """When a child of ours is replaced."""

    codex_recycle_turns: int = flag(
        "CODEX_RECYCLE_TURNS",
        2000,
        "replace the app-server after so many turns; 0 means never",
        bounds=(0, 1_000_000),
    )
    codex_recycle_mb: int = flag(
        "CODEX_RECYCLE_MB",
        1500,
        "replace the app-server when it has grown to so many megabytes; 0 means never",
        bounds=(0, 1_000_000),
    )


@frozen
class Patience:
    """How long to wait for a start, how soon to try again, and when a child is worn out."""

    handshake: float = 30.0
    first_pause: float = 0.25
    longest_pause: float = 15.0
    window: float = 60.0
    """Only ends within this window make the next pause longer: a bad minute is not for life."""
    most_turns: int = 0
    """After so many turns a child of ours is replaced; 0 means never."""
    most_memory: int = 0
    """Over so many bytes a child of ours is replaced; 0 means never."""
    drain: float = 900.0
    """How long a replaced child may take to end its last turns."""


class Pauses:
    """How soon to start again what ended, the longer the more often it did so of late."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._ends: deque[float] = deque()

    def next(self) -> float:
        """Exponential in the number of recent ends, with jitter so that many do not march."""
        now = trio.current_time()
        self._ends.append(now)
        while self._ends[0] < now - self._patience.window:
            self._ends.popleft()
        pause = self._patience.first_pause * 2.0 ** (len(self._ends) - 1)
        return min(pause, self._patience.longest_pause) * random.uniform(0.5, 1.0)  # noqa: S311
