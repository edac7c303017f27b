"""The loop that all sinks of an answer share: bursts in until the answer is whole."""

from __future__ import annotations

from typing import Generic, TypeVar

from pipeline.events import Burst
from pipeline.stage import Receive

Result = TypeVar("Result")


class Fed(Generic[Result]):
    """A sink that takes bursts one at a time, and knows when nothing more can matter."""

    @property
    def finished(self) -> bool:
        raise NotImplementedError(f"{type(self).__name__} must define finished")

    async def take(self, burst: Burst) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define take(burst)")

    def result(self) -> Result:
        raise NotImplementedError(f"{type(self).__name__} must define result()")

    async def run(self, receive: Receive) -> Result:
        async for burst in receive:
            await self.take(burst)
            if self.finished:
                break
        return self.result()
