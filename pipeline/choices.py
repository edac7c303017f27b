"""Runs the turns behind one answer: one, or as many as it has choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import trio

from pipeline.chain import Pipeline
from pipeline.errors import only_member
from pipeline.ledger import Ledger
from pipeline.stage import Source
from pipeline.turn import Turn
from sinks.choices import Choice, Shared

Result = TypeVar("Result")


async def run_choices(
    recipe: Pipeline,
    sources: Sequence[Source],
    sink: Shared[Result],
    turn: Turn,
    ledgers: Sequence[Ledger],
) -> Result:
    """Run every source through stages of its own into one sink; return what the sink makes."""
    if len(sources) == 1:
        return await recipe.run(sources[0], sink, turn, ledger=ledgers[0], fuse=True)
    one_at_a_time = trio.Lock()
    try:
        async with trio.open_nursery() as nursery:

            async def run(number: int) -> None:
                choice = Choice(sink, number, one_at_a_time)
                books = ledgers[number]
                own = turn.for_choice(number)
                await recipe.run(sources[number], choice, own, ledger=books, fuse=True)
                if sink.finished:  # one choice's failure is the end of them all
                    nursery.cancel_scope.cancel()

            for number in range(len(sources)):
                nursery.start_soon(run, number)
    except BaseExceptionGroup as group:
        raise only_member(group) from None
    return sink.result()
