"""Closes connections that wait too long for their next request."""

from __future__ import annotations

from collections.abc import Callable

import trio


class KeepAlive:
    """Closes idle connections after the timeout, and all of them at shutdown.

    One task for all connections costs less than one task for each.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._due: dict[Callable[[], None], float] = {}
        """How to close each idle connection, and when; the oldest comes first."""
        self._any_idle = trio.Event()
        self._ended = False

    def wait(self, close: Callable[[], None]) -> None:
        """A connection is idle from now on."""
        self.leave(close)
        if self._ended:
            close()
            return
        self._due[close] = trio.current_time() + self._timeout
        self._any_idle.set()

    def leave(self, close: Callable[[], None]) -> None:
        """A connection is busy again, or closed."""
        self._due.pop(close, None)

    async def run(self) -> None:
        """Close the connections whose time is over, until cancelled."""
        while True:
            while not self._due:
                self._any_idle = trio.Event()
                await self._any_idle.wait()
            close, due = next(iter(self._due.items()))
            if due > trio.current_time():
                await trio.sleep_until(due)
            else:
                del self._due[close]
                close()

    def end(self) -> None:
        """Close all idle connections, and each one that becomes idle later."""
        self._ended = True
        for close in list(self._due):
            del self._due[close]
            close()
