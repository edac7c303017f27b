"""Stages and sources that the tests of the chain are made of."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from pipeline.events import Event, TextDelta
from pipeline.stage import AsyncStage, Receive, Send, Stage


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

    async def run(self, receive: Receive, send: Send) -> None:
        async for burst in receive:
            await trio.sleep(1)
            await send.send(tuple(event for event in burst for _ in range(2)))


def texts(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def letters(word: str) -> list[Event]:
    return [TextDelta(letter) for letter in word]


class Endless:
    """A live source: it sends for ever, and remembers how it was made to leave."""

    real_time = True

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


class Waiting:
    """A live source that has said something and waits for its backend."""

    real_time = True

    def __init__(self) -> None:
        self.left_because: type[BaseException] | None = None

    async def run(self, send: Send) -> None:
        try:
            await send.send((TextDelta("x", at=trio.current_time()),))
            await trio.sleep_forever()
        except BaseException as error:
            self.left_because = type(error)
            raise
