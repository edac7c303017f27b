"""The interface of transports, for pipes and sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio


class TransportClosedError(Exception):
    """The other side is gone. Only operators may see its last stderr lines."""

    def __init__(self, reason: str, last_words: str = "") -> None:
        super().__init__(reason)
        self.last_words = last_words


class Transport(Protocol):
    """Sends messages one at a time; receives as many as have arrived."""

    def send_now(self, message: bytes) -> bool:
        """Send one message if that is possible without waiting; whether it was sent."""
        ...

    async def send(self, message: bytes) -> None:
        """Send one message. Raises TransportClosedError if the other side is gone."""
        ...

    async def receive(self) -> list[bytes]:
        """The next messages, at least one. Raises TransportClosedError at the end."""
        ...

    def memory(self) -> int | None:
        """The resident bytes of the process, if it is a child process of this server."""
        ...

    async def aclose(self) -> None:
        """Close the connection, by force if necessary. Never raises, never takes long."""
        ...


Connect: TypeAlias = Callable[[trio.Nursery], Awaitable[Transport]]
"""Connects; the connection's tasks run in the nursery."""
