"""One real Codex that several processes of ours use at once, confined as ever."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from attrs import evolve

from pipeline.turn import Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.patience import Patience
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel
from tests.support.sharing import sharing

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]

HELLO = "Hello, wörld 🌍!"
TOOLS = (Tool("localSearch"), Tool("readNote"))


@pytest.fixture(params=["wheel", "0.166.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(codex: str, overrides: dict[str, str]) -> BackendOptions:
    return BackendOptions(codex=codex, overrides=overrides)


async def test_it_is_replaced_under_way_and_no_turn_of_anybody_fails(
    options: BackendOptions, ask: Ask, said: Said
) -> None:
    worn_soon = evolve(options, patience=Patience(most_turns=6))
    async with sharing(worn_soon) as both:
        counters = both.server.counters

        async def keep_busy(pool: Pool) -> None:
            while counters["replaced"] < 2:
                answer = await ask(pool, said("TEXT"))
                assert answer.body["choices"][0]["message"]["content"] == HELLO
                burst = await ask(pool, said("BURST", tools=TOOLS))
                assert len(burst.body["choices"][0]["message"]["tool_calls"]) == 3

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for pool in both.pools:
                    nursery.start_soon(keep_busy, pool)
        assert counters["restarts"] == 0
        assert sum(pool.servers[0].counters["restarts"] for pool in both.pools) == 0


async def test_nothing_of_its_socket_is_left_behind(
    options: BackendOptions, ask: Ask, said: Said
) -> None:
    async with sharing(options, 1) as alone:
        await ask(alone.pools[0], said("TEXT"))
        place = alone.socket.readlink()
        assert place.parent.stat().st_mode & 0o777 == 0o700
        assert place.is_socket()
        os.kill(alone.child.process.pid, signal.SIGKILL)
    assert not [left for left in place.parent.iterdir() if left.name.startswith(place.name)]


async def test_it_has_no_mcp_servers_and_need_not_be_asked_for_them(
    options: BackendOptions, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    async with sharing(evolve(options, home=home), 1) as alone:
        await ask(alone.pools[0], said("TEXT"))
        assert alone.pools[0].counters()["sent config/read"] == 0
    assert "mcp__shouter" not in json.dumps(model.requests)
    assert not any(request.get("tools") for request in model.requests)
