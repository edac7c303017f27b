"""Where one turn's messages wait for it: bounded, so that a slow turn harms nobody but itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from sources.app_server.protocol.rpc import Notification, ServerRequest

MOST_BYTES: Final = 64 * 1024 * 1024

Letter: TypeAlias = Notification | ServerRequest | bytes
"""A message. The line of a delta stays as it is: there are so many that they are read together."""


class Delivery(NamedTuple):
    """What one read of the backend brought for one turn, and when."""

    letters: tuple[Letter, ...]
    at: float


TakeAtOnce: TypeAlias = Callable[[Delivery], bool]
"""Takes a delivery as it comes, or says no: then it waits to be taken."""


class MailboxClosedError(Exception):
    """No more letters will come; the reason is why."""


class Mailbox:
    """The reader never waits to put something in. What does not fit fails this turn only."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._deliveries: list[Delivery] = []
        self._bytes = 0
        self._reason: str | None = None
        self._news = trio.Event()
        self._at_once: TakeAtOnce | None = None
        """Whoever waits would take it so: a wake-up costs more than most that is done with it."""
        self._mistake: Exception | None = None
        """What that raised, until it is raised where somebody waits."""

    def put(self, letters: list[Letter], at: float) -> None:
        """Add what has arrived. Letters after the end, or over the bound, are not kept."""
        if self._reason is not None or self._is_taken(letters, at):
            return
        for letter in letters:
            self._bytes += len(letter) if isinstance(letter, bytes) else letter.size
        if self._bytes > self._most_bytes:
            self.close("the client read too slowly, and the turn's mailbox is full")
            return
        self._deliveries.append(Delivery(tuple(letters), at))
        self._news.set()

    def _is_taken(self, letters: list[Letter], at: float) -> bool:
        if self._at_once is None or self._news.is_set():
            return False  # whoever waited was woken, and nothing may overtake what it was for
        try:
            return self._at_once(Delivery(tuple(letters), at))
        except Exception as mistake:  # noqa: BLE001  # a turn's own, and not the reader's
            self._mistake = mistake
            self._news.set()
            return True

    @property
    def closed(self) -> bool:
        return self._reason is not None

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._news.set()

    def empty(self) -> Sequence[Delivery]:
        """Take out what has arrived, without waiting; what went wrong before is forgotten."""
        deliveries, self._deliveries = self._deliveries, []
        self._bytes = 0
        self._mistake = None
        return deliveries

    async def take(self, at_once: TakeAtOnce | None = None) -> Sequence[Delivery]:
        """All that has arrived, at least one delivery, each with the time it came.

        Raises MailboxClosedError at the end.

        While there is nothing, `at_once` is offered what comes; what it raises is raised here.
        """
        while True:
            if self._mistake is not None:
                mistake, self._mistake = self._mistake, None
                raise mistake
            if self._deliveries:
                return self.empty()
            if self._reason is not None:
                raise MailboxClosedError(self._reason)
            self._news = trio.Event()
            self._at_once = at_once
            try:
                await self._news.wait()
            finally:
                self._at_once = None
