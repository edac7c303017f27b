"""Several turns as the choices of one answer."""

from __future__ import annotations

from typing import Protocol, TypeVar

import trio
from attrs import evolve

from pipeline.events import Burst, TurnEnd
from pipeline.stage import Receive, Sink

Result_co = TypeVar("Result_co", covariant=True)


class Shared(Sink[Result_co], Protocol[Result_co]):
    """A sink that several turns can feed, one burst at a time."""

    @property
    def finished(self) -> bool:
        """Whether nothing that is still to come can matter."""
        ...

    async def take(self, burst: Burst) -> None: ...

    def result(self) -> Result_co: ...


class Choice:
    """Gives one turn's events to the shared sink, under the number of their choice."""

    def __init__(self, sink: Shared[object], number: int, one_at_a_time: trio.Lock) -> None:
        self._sink = sink
        self._number = number
        self._one_at_a_time = one_at_a_time

    async def run(self, receive: Receive) -> None:
        async for burst in receive:
            numbered = tuple(evolve(event, choice=self._number) for event in burst)
            async with self._one_at_a_time:
                if self._sink.finished:
                    return
                await self._sink.take(numbered)
            if isinstance(burst[-1], TurnEnd):
                return
