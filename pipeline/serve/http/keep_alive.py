"""Closes connections that wait too long for their next request."""

from __future__ import annotations

from math import inf

import trio


class KeepAlive:
    """Closes idle connections after the timeout, and all of them at shutdown.

    One task for all connections: hypercorn has one for each, and makes a new one per request.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._due: dict[trio.socket.SocketType, float] = {}
        """When each idle connection is closed; the oldest comes first."""
        self._ended = False

    def wait(self, socket: trio.socket.SocketType) -> None:
        """A connection is idle from now on."""
        self.leave(socket)
        if self._ended:
            socket.close()
        else:
            self._due[socket] = trio.current_time() + self._timeout

    def leave(self, socket: trio.socket.SocketType) -> None:
        """A connection is busy again, or closed."""
        self._due.pop(socket, None)

    async def run(self) -> None:
        """Close the connections whose time is over, until cancelled."""
        while True:
            # What becomes idle during the sleep is not due before its end.
            later = trio.current_time() + self._timeout
            await trio.sleep_until(next(iter(self._due.values()), later))
            self._close(trio.current_time())

    def end(self) -> None:
        """Close all idle connections, and each one that becomes idle later."""
        self._ended = True
        self._close(inf)

    def _close(self, now: float) -> None:
        while self._due:
            socket, due = next(iter(self._due.items()))
            if due > now:
                return
            del self._due[socket]
            socket.close()
