"""Stages and sources that the tests of the chain are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from attrs import evolve

from pipeline.chain import Chain
from pipeline.events import Burst, Event, TextDelta
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import AsyncStage, Incoming, Outcome, ReceiveBursts, Send, Source, Stage
from pipeline.tasks import SendingSource
from pipeline.turn import Turn

Result = TypeVar("Result")


class Pass(Stage):
    def feed(self, event: Event) -> Sequence[Event]:
        return (event,)


class Shout(Stage):
    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, TextDelta):
            return self.swap(event, TextDelta(event.text.upper(), at=event.at))
        return (event,)


class StopAfter(Stage):
    """Lets so many events pass and is done."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def feed(self, event: Event) -> Sequence[Event]:
        self.left -= 1
        self.done = self.left == 0
        return (event,)


class Hold(Stage):
    """Holds everything until it is woken, a second after the first event, or closed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Event] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if not self.held:
            self.deadline = event.at + 1.0
        self.held.append(event)
        return ()

    def wake(self, now: float) -> Sequence[Event]:
        return self.close()

    def close(self) -> Sequence[Event]:
        held, self.held = self.held, []
        return held


class AsyncDouble(AsyncStage):
    """Sends every event twice, after a wait."""

    async def run(self, receive: ReceiveBursts, send: Send) -> None:
        async for burst in receive:
            await trio.sleep(1)
            await send.send(tuple(event for event in burst for _ in range(2)))


class AsyncCopy(AsyncStage):
    """Sends on what it is given."""

    async def run(self, receive: ReceiveBursts, send: Send) -> None:
        async for burst in receive:
            await send.send(burst)


def texts(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def letters(word: str) -> list[Event]:
    return [TextDelta(letter) for letter in word]


class Arriving:
    """A live source whose events arrive at their times, whether they are read by then or not.

    What has arrived waits with its own stamp, as in the mailbox of a backend. `taken` is how many
    events were received.
    """

    real_time = True

    def __init__(self, *events: tuple[float, Event]) -> None:
        self._events = events
        self.taken = 0
        self.outcome: Outcome | None = None
        """What was delivered."""

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        begun = trio.current_time()
        yield _Arrived(self, [evolve(e, at=begun + after) for after, e in self._events])


class _Arrived(Incoming):
    def __init__(self, source: Arriving, events: list[Event]) -> None:
        self._source = source
        self._events = events

    def receive_nowait(self) -> Burst:
        if not self._events:
            raise trio.EndOfChannel
        now = trio.current_time()
        burst = tuple(event for event in self._events if event.at <= now)
        if not burst:
            raise trio.WouldBlock
        self._source.taken += len(burst)
        del self._events[: len(burst)]
        return burst

    async def receive(self) -> Burst:
        while True:
            try:
                return self.receive_nowait()
            except trio.WouldBlock:
                await trio.sleep_until(self._events[0].at)

    def delivered(self, outcome: Outcome | None) -> None:
        self._source.outcome = outcome


class Endless(SendingSource):
    """A live source: it sends for ever, and remembers how it was made to leave."""

    def __init__(self) -> None:
        self.sent = 0
        self.left_because: type[BaseException] | None = None

    async def run(self, send: Send) -> None:
        try:
            while True:
                await send.send((TextDelta("x", at=trio.current_time()),))
                self.sent += 1
        except BaseException as error:
            self.left_because = type(error)
            raise


class Waiting(SendingSource):
    """A live source that has said something and waits for its backend."""

    def __init__(self) -> None:
        self.left_because: type[BaseException] | None = None

    async def run(self, send: Send) -> None:
        try:
            await send.send((TextDelta("x", at=trio.current_time()),))
            await trio.sleep_forever()
        except BaseException as error:
            self.left_because = type(error)
            raise


async def read(
    recipe: Pipeline,
    source: Source,
    reader: Callable[[Chain], Awaitable[Result]],
    turn: Turn | None = None,
    *,
    ledger: Ledger | None = None,
    fuse: bool = True,
) -> Result:
    """What a reader of a running chain returns; then the client has all of it."""
    async with recipe.open(source, turn, ledger=ledger, fuse=fuse) as chain:
        result = await reader(chain)
        chain.finishing()
        chain.delivered()
        return result


async def everything(chain: Chain) -> list[Event]:
    """A reader that reads to the end, and never waits for anything else."""
    return [event async for burst in chain for event in burst]


async def stalling(chain: Chain, *, seconds: float = 30.0) -> list[Event]:
    """A client that reads its first burst and then nothing for a while."""
    events = [*await chain.receive()]
    await trio.sleep(seconds)
    async for burst in chain:
        events += burst
    return events
