"""A live turn that is written down replays as what it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.assembly import Settings, recipe, recorder
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.app_server.process.pool import Pool
from sources.app_server.turn.source import AppServerSource
from sources.replay import Replay


@pytest.mark.parametrize("version", ["wheel"], indirect=True)
async def test_a_recorded_turn_replays_as_the_client_got_it(
    backend: Pool, said: Callable[..., Turn], tmp_path: Path
) -> None:
    settings = Settings(record_dir=str(tmp_path), codex_hold_turns=False)
    turn = said("BURST", tools=(Tool("localSearch"), Tool("readNote")))
    record = recorder(settings)
    assert record is not None
    source = AppServerSource(backend, record=lambda: record)
    began = time.time()
    live = await recipe(settings).run(source, Collect(), turn)
    replay = Replay(record.path)
    again = await recipe(settings).run(replay, Collect(), turn)
    header = replay.header
    assert began <= header.time <= time.time()
    assert header.backend == (await backend.lease()).client.user_agent != ""
    assert (header.response_ends, header.raw_items, header.turn) == ("unknown", True, turn)
    assert [type(event) for event in again] == [type(event) for event in live]
    for event, replayed in zip(live, again, strict=True):
        for field in ("text", "call_id", "name", "arguments", "total_tokens", "reason"):
            assert getattr(replayed, field, None) == getattr(event, field, None)
