"""Something to wait for that takes no room while nobody does."""

from __future__ import annotations

import trio


class Moment:
    """Like trio's Event, which is made only for as long as somebody waits.

    Every stream has several, and nearly all of them have come before anybody looks.
    """

    __slots__ = ("_come", "_waiting")

    def __init__(self) -> None:
        self._come = False
        self._waiting: trio.Event | None = None

    def is_set(self) -> bool:
        return self._come

    def set(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._come = True
        if waiting is not None:
            waiting.set()

    def clear(self) -> None:
        """Let it come once more. Who waits goes on waiting."""
        self._come = False

    async def wait(self) -> None:
        """Until it has come; at once if it has."""
        if not self._come:
            if self._waiting is None:
                self._waiting = trio.Event()
            await self._waiting.wait()
