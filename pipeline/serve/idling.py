"""Connections that wait for their next request, and for how long they may."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Idle:
    """Hangs up on those that have waited long enough, and on all of them when the server ends.

    One task sees to all connections: each has enough tasks of its own, and while it is busy it
    would need none.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._due: dict[Callable[[], None], float] = {}
        """When to hang up, and how; who came first is due first."""
        self._somebody = trio.Event()
        self._ended = False

    def wait(self, hang_up: Callable[[], None]) -> None:
        """Somebody has nothing to do from now on."""
        self.leave(hang_up)
        if self._ended:
            hang_up()
            return
        self._due[hang_up] = trio.current_time() + self._patience
        self._somebody.set()

    def leave(self, hang_up: Callable[[], None]) -> None:
        """Somebody has something to do again, or is no more."""
        self._due.pop(hang_up, None)

    async def run(self) -> None:
        """Hang up on whoever is due, until cancelled."""
        while True:
            while not self._due:
                self._somebody = trio.Event()
                await self._somebody.wait()
            hang_up, due = next(iter(self._due.items()))
            if due > trio.current_time():
                await trio.sleep_until(due)
            else:
                del self._due[hang_up]
                hang_up()

    def end(self) -> None:
        """Hang up on all, and on whoever has nothing to do from now on."""
        self._ended = True
        for hang_up in list(self._due):
            del self._due[hang_up]
            hang_up()
