"""Turns that are left at every moment of their opening, and how their threads are let go of."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from pipeline.events import ToolCall
from pipeline.loose_json import Json
from pipeline.turn import Turn
from sources.app_server.protocol.capabilities import Learned
from sources.app_server.turn.place import Bounds
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


async def test_a_turn_that_failed_behind_its_call_is_not_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was interrupted, so a follow-up on its thread would wait for nothing."""
    responses = [[Step(0.5, "call"), Step(3.0, "text", "more")], [Step(0.1, "text", "Done.")]]
    bounds = Bounds(total=2.0)
    async with slow_codex(*responses, tells=False, bounds=bounds) as (codex, backend):
        first = await ask(backend, GO)
        assert [call.call_id for call in first.calls] == ["call_1"]
        assert len(backend.kept) == 0
        await trio.sleep(1.0)
        assert (codex.interrupted, sent(codex, "thread/delete")) == (1, 1)


async def test_the_end_of_an_earlier_response_does_not_cut_off_the_calls_of_a_later_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client that stalls reads both in one burst."""
    text = [Step(0.1, "text", "Hm.")]
    calls = [Step(0.5, "call"), Step(2.0, "call")]
    async with slow_codex(text, calls, tells=True, learned=Learned("told")) as (_, backend):
        made: list[str] = []
        async with AppServerSource(backend).open(turn_of(GO)) as incoming:
            await trio.sleep(1.0)
            with suppress(trio.EndOfChannel):
                while True:
                    burst = await incoming.receive()
                    made += [event.call_id for event in burst if isinstance(event, ToolCall)]
        assert made == ["call_1", "call_2"]
