"""Timeouts and restart pauses of an app-server, and when it is recycled."""

from __future__ import annotations

import random
from collections import deque

import trio
from attrs import frozen

from pipeline.options import backend_flag as flag


@frozen(slots=False)
class RecycleOptions:
    """When an app-server process is replaced."""

    codex_recycle_turns: int = flag(
        "CODEX_RECYCLE_TURNS",
        2000,
        "replace the app-server after this many turns; 0: never",
        bounds=(0, 1_000_000),
    )
    codex_recycle_mb: int = flag(
        "CODEX_RECYCLE_MB",
        1500,
        "replace the app-server when it uses this many megabytes; 0: never",
        bounds=(0, 1_000_000),
    )


@frozen
class Patience:
    """Start timeout, restart pauses, and limits for recycling."""

    handshake: float = 30.0
    first_pause: float = 0.25
    longest_pause: float = 15.0
    window: float = 60.0
    """Only exits within this window make the next pause longer."""
    most_turns: int = 0
    """The process is replaced after this many turns; 0: never."""
    most_memory: int = 0
    """The process is replaced over this many resident bytes; 0: never."""
    drain: float = 900.0
    """Seconds for a replaced process to finish its last turns."""


class Pauses:
    """Pauses before restarts: the more recent exits, the longer."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._ends: deque[float] = deque()

    def next(self) -> float:
        """Exponential in the number of recent exits, with jitter."""
        now = trio.current_time()
        self._ends.append(now)
        while self._ends[0] < now - self._patience.window:
            self._ends.popleft()
        pause = self._patience.first_pause * 2.0 ** (len(self._ends) - 1)
        return min(pause, self._patience.longest_pause) * random.uniform(0.5, 1.0)  # noqa: S311
