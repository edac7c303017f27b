"""What a turn leaves in memory: nothing that only the garbage collector could find."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from pipeline.events import Burst, TextDelta, TurnEnd
from pipeline.ledger import Ledger
from pipeline.recipe import Pipeline
from pipeline.stage import Incoming
from pipeline.turn import Turn
from tests.support.chain_parts import AsyncCopy, Hold, Pass, everything, read

RECIPE = Pipeline([("a", Pass), ("hold", Hold), ("copy", AsyncCopy), ("b", Pass)])


@pytest.fixture(autouse=True)
def _without_collector() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Talks(Incoming):
    def __init__(self) -> None:
        self._bursts: list[Burst] = [(TurnEnd(at=9.0),), (TextDelta("x"),)]

    async def receive(self) -> Burst:
        if not self._bursts:
            raise trio.EndOfChannel
        await trio.sleep(3)
        return self._bursts.pop()


class Watched:
    """Notes weakly what it has opened."""

    real_time = True

    def __init__(self) -> None:
        self.opened: list[weakref.ref[Incoming]] = []

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        incoming = Talks()
        self.opened.append(weakref.ref(incoming))
        yield incoming

    @property
    def kept(self) -> list[Incoming]:
        return [incoming for ref in self.opened if (incoming := ref()) is not None]


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("recipe", [Pipeline([("a", Pass)]), RECIPE])
async def test_a_turn_is_freed_when_it_has_ended(
    recipe: Pipeline, fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    source = Watched()
    await read(recipe, source, everything, fuse=fuse)
    assert len(source.opened) == 1
    assert source.kept == []


async def test_the_turns_of_several_choices_are_freed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Watched()

    async def both() -> None:
        async with RECIPE.open_choices(source, Turn(), [Ledger(), Ledger()]) as chain:
            await everything(chain)

    await both()
    assert len(source.opened) == 2
    assert source.kept == []
