"""Several choices of one answer: each is a chain of its own, and one writer reads them all."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
import trio.testing

from pipeline.events import Burst, TextDelta, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Incoming, Outcome
from pipeline.turn import Turn
from tests.support.chain_parts import Pass


class Talks(Incoming):
    """Says one word, and ends so many seconds later."""

    def __init__(self, seconds: float, log: list[tuple[str, float]]) -> None:
        self._seconds = seconds
        self._log = log
        self._bursts: list[Burst] = [(TurnEnd(),), (TextDelta("x"),)]

    async def receive(self) -> Burst:
        await trio.sleep(self._seconds / 2)
        return self._bursts.pop()

    def finishing(self, outcome: Outcome | None) -> None:
        self._log.append(("finishing", self._seconds))

    def delivered(self, outcome: Outcome | None) -> None:
        self._log.append(("delivered", self._seconds))


class Choices:
    """Each turn takes a second longer than the one before; no two moments are the same."""

    real_time = True

    def __init__(self) -> None:
        self.opened = 0
        self.log: list[tuple[str, float]] = []

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        self.opened += 1
        yield Talks(self.opened + 0.5, self.log)


async def test_a_choice_that_has_ended_does_not_run_on_while_others_are_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its turn may go on upstream, such as one that was cut at a stop sequence."""
    source, ledgers = Choices(), [Ledger(), Ledger()]
    async with Pipeline([("a", Pass)]).open_choices(source, Turn(), ledgers) as chain:
        begun = trio.current_time()
        while trio.current_time() < begun + 1.5:
            await chain.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert source.log == [("finishing", 1.5)]
        async for _ in chain:
            pass
        chain.finishing()
        chain.delivered()
    said = [("finishing", 1.5), ("finishing", 2.5), ("delivered", 1.5), ("delivered", 2.5)]
    assert source.log == said
