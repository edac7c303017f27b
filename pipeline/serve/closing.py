"""Turns that know when the server must end."""

from __future__ import annotations

from collections.abc import Callable

import trio

from pipeline.errors import Failure
from pipeline.events import Burst, Failed, TurnEnd
from pipeline.stage import Outcome, Send, Source, settle

ENDING = Failure(
    "the server is being stopped; send the request again in a moment",
    status=503,
    type="server_error",
    code="server_is_overloaded",
    retry_after=5.0,
)


class Time:
    """How long the server lives. When it is up, whatever runs within it ends, all at once.

    No task waits for that in every turn: a turn has enough to wait for.
    """

    def __init__(self) -> None:
        self.is_up = False
        self._running: set[trio.CancelScope] = set()

    def begin(self, scope: trio.CancelScope) -> None:
        """Have a scope cancelled when the time is up."""
        if self.is_up:
            scope.cancel()
        self._running.add(scope)

    def over(self, scope: trio.CancelScope) -> None:
        """What ran in a scope has ended."""
        self._running.discard(scope)

    def end(self) -> None:
        self.is_up = True
        for scope in list(self._running):
            scope.cancel()


class EndedByServer:
    """A source that leaves when the server's time is up, and then ends its turn properly."""

    def __init__(self, source: Source, time: Time, hear: Callable[[float], None]) -> None:
        self._source = source
        self._time = time
        self._hear = hear

    @property
    def real_time(self) -> bool:
        return self._source.real_time

    def settle(self, outcome: Outcome | None) -> None:
        settle(self._source, outcome)

    async def run(self, send: Send) -> None:
        turn = trio.CancelScope()
        self._time.begin(turn)
        try:
            with turn:
                await self._source.run(_FirstHeard(send, self._hear))
        finally:
            self._time.over(turn)
        if turn.cancelled_caught:
            now = trio.current_time()
            await send.send((Failed(ENDING, at=now), TurnEnd("failed", at=now)))


class _FirstHeard:
    """The sending end, which notes when the first burst came and then stands aside."""

    def __init__(self, channel: Send, hear: Callable[[float], None]) -> None:
        self._channel = channel
        self._hear = hear
        self.send = self._first
        self.send_nowait = self._first_nowait

    @property
    def ready(self) -> bool:
        return self._channel.ready

    async def _first(self, value: Burst, /) -> None:
        self._note(value)
        await self._channel.send(value)

    def _first_nowait(self, value: Burst, /) -> None:
        self._note(value)
        self._channel.send_nowait(value)

    def _note(self, value: Burst) -> None:
        self._hear(value[0].at)
        self.send, self.send_nowait = self._channel.send, self._channel.send_nowait

    def close(self) -> None:
        self._channel.close()
