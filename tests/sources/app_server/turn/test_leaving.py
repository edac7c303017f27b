"""Turns that are left at every moment of their opening, and how their threads are let go of."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pipeline.loose_json import Json
from pipeline.turn import Turn
from sources.app_server.protocol.capabilities import Learned
from sources.app_server.turn.source import AppServerSource
from tests.support.slow_codex import TOOL, OneBackend, SlowCodex, Step, ask, followed, slow_codex

GO: list[Json] = [{"type": "message", "role": "user", "content": "Go"}]


def turn_of(items: list[Json]) -> Turn:
    return Turn(model="m", items=tuple(items), tools=(TOOL,), request_id="req_1")


def sent(codex: SlowCodex, method: str) -> int:
    return sum(message.get("method") == method for message in codex.wire.sent)


async def left_after(backend: OneBackend, items: list[Json], ticks: int) -> None:
    """Open a turn, and leave it so many ticks of the scheduler later."""
    async with AppServerSource(backend).open(turn_of(items)):
        for _ in range(ticks):
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("ticks", range(40))
async def test_a_turn_that_is_left_at_any_moment_of_its_opening_leaves_no_thread(
    ticks: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with slow_codex([Step(1000.0, "text", "late")], tells=True) as (codex, backend):
        for _ in range(6):  # tasks that are ready together run in any order
            await left_after(backend, GO, ticks)
        await trio.sleep(10)
        assert backend.place.client.load == 0
        assert codex.threads == sent(codex, "thread/delete")
        assert sent(codex, "turn/start") == codex.interrupted


@pytest.mark.parametrize("ticks", [0, 1, 2, 3])
async def test_a_follow_up_that_is_left_at_once_leaves_no_thread(
    ticks: int, autojump_clock: trio.testing.MockClock
) -> None:
    responses = [[Step(0.1, "call")], [Step(1000.0, "text", "late")]]
    async with slow_codex(*responses, tells=True, learned=Learned("told")) as (codex, backend):
        first = await ask(backend, GO)
        assert len(backend.kept) == 1
        await left_after(backend, followed(GO, first), ticks)
        await trio.sleep(700)  # longer than a thread is kept
        assert backend.place.client.load == 0
        assert (codex.interrupted, sent(codex, "thread/delete")) == (1, 1)
