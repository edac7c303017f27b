"""How messages travel to and from an app-server: one interface for pipes and sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio


class TransportClosedError(Exception):
    """The other side is gone. Its last words are for its operator: anything may be in them."""

    def __init__(self, reason: str, last_words: str = "") -> None:
        super().__init__(reason)
        self.last_words = last_words


class Transport(Protocol):
    """Messages out one at a time, messages in as many as have arrived."""

    def send_now(self, message: bytes) -> bool:
        """Send one message if that takes no waiting; whether it was sent, all of it or nothing."""
        ...

    async def send(self, message: bytes) -> None:
        """Send one message. Raises TransportClosedError when nobody is there."""
        ...

    async def receive(self) -> list[bytes]:
        """The next messages, at least one. Raises TransportClosedError at the end."""
        ...

    def memory(self) -> int | None:
        """The resident bytes of the process behind it, if it is a child of ours."""
        ...

    async def aclose(self) -> None:
        """Let go of the other side, by force if need be. Never raises, never takes long."""
        ...


Connect: TypeAlias = Callable[[trio.Nursery], Awaitable[Transport]]
"""Makes a connection, whose tasks run in the nursery."""
