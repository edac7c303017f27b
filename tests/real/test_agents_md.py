"""What an AGENTS.md in the owner's CODEX_HOME does to the turns of real Codex versions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

from pipeline.loose_json import Json
from pipeline.turn import Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]
OLD = "0.89.0"


def spoken(request: Json) -> list[tuple[str, str]]:
    """Who says what in a request to the model."""
    return [
        (item["role"], "".join(part.get("text", "") for part in item["content"]))
        for item in request["input"]
    ]


@pytest.mark.parametrize(
    ("files", "read"),
    [
        (["AGENTS.md"], "AGENTS.md"),
        (["AGENTS.override.md"], "AGENTS.override.md"),
        (["AGENTS.md", "AGENTS.override.md"], "AGENTS.override.md"),
    ],
)
async def test_an_agents_file_in_codex_home_precedes_the_messages_of_every_client(
    files: list[str],
    read: str,
    version: str,
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    home: Path,
) -> None:
    for name in files:
        (home / name).write_text(f"The watchword is {name}.")
    async with open_codex(home=home) as backend:
        await ask(backend, said("TEXT", base_instructions="You are Ada."))
    (request,) = model.requests
    *before, last = spoken(request)
    assert last == ("user", "TEXT")
    (found,) = [(role, text) for role, text in before if "The watchword is" in text]
    assert found[0] == "user"
    assert found[1].startswith("# AGENTS.md instructions")
    assert f"<INSTRUCTIONS>\nThe watchword is {read}.\n" in found[1]
    if version != OLD:  # which adds messages of its own
        assert before == [("developer", "You are Ada."), found]


async def test_without_an_agents_file_no_message_speaks_of_one(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    async with open_codex(home=home) as backend:
        await ask(backend, said("TEXT", base_instructions="You are Ada."))
    assert "The watchword" not in json.dumps(model.requests)
