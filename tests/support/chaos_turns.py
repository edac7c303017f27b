"""Turns on the fake Codex, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from attrs import evolve

from pipeline.errors import Failure
from pipeline.events import Event, Failed, TextDelta
from pipeline.loose_json import Json
from pipeline.recipe import Pipeline
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.source import AppServerSource

HELLO = "Hello, wörld 🌍!"
"""What the scripted model says to TEXT."""
TOOLS = (Tool("localSearch"), Tool("readNote"))


def user(words: str) -> Json:
    return {"type": "message", "role": "user", "content": words}


def turn_of(words: str, **fields: Any) -> Turn:
    return evolve(Turn(model="gpt-5", items=(user(words),), tools=TOOLS), **fields)


async def play(
    backend: Backend,
    turn: Turn | str,
    bounds: Bounds | None = None,
    recipe: Pipeline | None = None,
) -> list[Event]:
    """Run a turn to its end, through no stage unless a recipe is given."""
    turn = turn_of(turn) if isinstance(turn, str) else turn
    source = AppServerSource(backend, bounds)
    with trio.fail_after(30):
        return await (recipe or Pipeline()).run(source, Collect(), turn)


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def failure(events: Sequence[Event]) -> Failure:
    """The one failure of a turn."""
    (failed,) = [event for event in events if isinstance(event, Failed)]
    return failed.error
