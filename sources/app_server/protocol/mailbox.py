"""Where one turn's messages wait for it: bounded, so that a slow turn harms nothing but itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from sources.app_server.protocol.rpc import Notification, ServerRequest

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_TAKEN: Final = 256
"""How many letters are taken together: more in one burst would block the event loop."""

Letter: TypeAlias = Notification | ServerRequest | bytes
"""A message. The line of a delta stays as it is: there are so many that they are read together."""


class Delivery(NamedTuple):
    """What one read of the backend brought for one turn, and when."""

    letters: tuple[Letter, ...]
    at: float


class MailboxClosedError(Exception):
    """No more letters will come; the reason is why."""


class Mailbox:
    """The one queue between a connection's reader and a turn.

    The reader never waits to put something in. What does not fit fails this turn only.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._deliveries: deque[Delivery] = deque()
        self._bytes = 0
        self._letters = 0
        self._reason: str | None = None
        self._waiting: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        return self._letters

    def put(self, letters: Sequence[Letter], at: float) -> None:
        """Add what has arrived. Letters after the end, or over the bound, are not kept."""
        if self._reason is not None:
            return
        self._bytes += sum(map(_size, letters))
        if self._bytes > self._most_bytes:
            self.close("the client read too slowly, and the turn's mailbox is full")
            return
        self._letters += len(letters)
        self._deliveries.append(Delivery(tuple(letters), at))
        self.notify()

    @property
    def closed(self) -> bool:
        return self._reason is not None

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.notify()

    def take_nowait(self) -> Sequence[Delivery]:
        """What has arrived, up to a bound, each delivery with the time it came.

        WouldBlock if nothing has; MailboxClosedError at the end.
        """
        if self._letters > MOST_TAKEN:
            return self._take_some()
        if self._deliveries:
            deliveries, self._deliveries = self._deliveries, deque()
            self._bytes = self._letters = 0
            return deliveries
        if self._reason is not None:
            raise MailboxClosedError(self._reason)
        raise trio.WouldBlock

    def _take_some(self) -> Sequence[Delivery]:
        taken: list[Delivery] = []
        room = MOST_TAKEN
        while room:
            letters, at = self._deliveries.popleft()
            if len(letters) > room:
                self._deliveries.appendleft(Delivery(letters[room:], at))
                letters = letters[:room]
            room -= len(letters)
            self._bytes -= sum(map(_size, letters))
            taken.append(Delivery(letters, at))
        self._letters -= MOST_TAKEN
        return taken

    async def wait(self) -> None:
        """Wait until something has arrived, or `notify` is called. One task may wait at a time."""
        if self._waiting is not None:
            raise trio.BusyResourceError("another task waits at this mailbox")
        self._waiting = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._waiting = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def notify(self) -> None:
        """Wake the turn, to look at what else there is for it."""
        task, self._waiting = self._waiting, None
        if task is not None:
            trio.lowlevel.reschedule(task)


def _size(letter: Letter) -> int:
    return len(letter) if isinstance(letter, bytes) else letter.size
