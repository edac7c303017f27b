"""Where one turn's messages wait for it: bounded, so that a slow turn harms nobody but itself."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import trio

from sources.app_server.rpc import Notification, ServerRequest

MOST_BYTES: Final = 64 * 1024 * 1024

Letter: TypeAlias = Notification | ServerRequest | bytes
"""A message. The line of a delta stays as it is: there are so many that they are read together."""


class Delivery(NamedTuple):
    """What one read of the backend brought for one turn, and when."""

    letters: tuple[Letter, ...]
    at: float


class MailboxClosedError(Exception):
    """No more letters will come; the reason is why."""


class Mailbox:
    """The reader never waits to put something in. What does not fit fails this turn only."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._letters: list[Letter] = []
        self._bytes = 0
        self._at = 0.0
        self._reason: str | None = None
        self._news = trio.Event()

    def put(self, letters: list[Letter], at: float) -> None:
        """Add what has arrived. Letters after the end, or over the bound, are not kept."""
        if self._reason is not None:
            return
        for letter in letters:
            self._bytes += len(letter) if isinstance(letter, bytes) else letter.size
        if self._bytes > self._most_bytes:
            self.close("the client read too slowly, and the turn's mailbox is full")
            return
        self._letters += letters
        self._at = at
        self._news.set()

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._news.set()

    def empty(self) -> list[Letter]:
        """Take out what has arrived, without waiting."""
        letters, self._letters = self._letters, []
        self._bytes = 0
        return letters

    async def take(self) -> Delivery:
        """All that has arrived, at least one letter. Raises MailboxClosedError at the end."""
        while not self._letters:
            if self._reason is not None:
                raise MailboxClosedError(self._reason)
            self._news = trio.Event()
            await self._news.wait()
        return Delivery(tuple(self.empty()), self._at)
