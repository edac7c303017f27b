"""Turns that know when the server must end."""

from __future__ import annotations

from collections.abc import Callable

import trio

from pipeline.errors import Failure
from pipeline.events import Burst, Failed, TurnEnd
from pipeline.stage import Send, Settling, Source

ENDING = Failure(
    "the server is being stopped; send the request again in a moment",
    status=503,
    type="server_error",
    code="server_is_overloaded",
    retry_after=5.0,
)


class EndedByServer:
    """A source that leaves when the server's time is up, and then ends its turn properly."""

    def __init__(
        self, source: Source, time_is_up: trio.Event, hear: Callable[[float], None]
    ) -> None:
        self._source = source
        self._time_is_up = time_is_up
        self._hear = hear

    @property
    def real_time(self) -> bool:
        return self._source.real_time

    def settle(self, *, delivered: bool) -> None:
        if isinstance(self._source, Settling):
            self._source.settle(delivered=delivered)

    async def run(self, send: Send) -> None:
        broken: trio.BrokenResourceError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_time_is_up, nursery.cancel_scope)
            try:
                await self._source.run(_FirstHeard(send, self._hear))
            except trio.BrokenResourceError as error:
                broken = error  # to be raised as it is, and not in a group
            nursery.cancel_scope.cancel()
        if broken is not None:
            raise broken
        if self._time_is_up.is_set():
            now = trio.current_time()
            await send.send((Failed(ENDING, at=now), TurnEnd("failed", at=now)))

    async def _until_time_is_up(self, turn: trio.CancelScope) -> None:
        await self._time_is_up.wait()
        turn.cancel()


class _FirstHeard:
    """The sending end, which notes when the first burst came and then stands aside."""

    def __init__(self, channel: Send, hear: Callable[[float], None]) -> None:
        self._channel = channel
        self._hear = hear
        self.send = self._first

    async def _first(self, value: Burst, /) -> None:
        self._hear(value[0].at)
        self.send = self._channel.send
        await self._channel.send(value)

    def close(self) -> None:
        self._channel.close()
