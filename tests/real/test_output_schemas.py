"""Schemas for the answer on the real Codex, before a model that refuses what OpenAI refuses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from pipeline.assembly import Settings
from pipeline.loose_json import Json, as_json
from pipeline.serve.backends import CodexBackend
from sources.app_server.protocol.prompts import FORM_RULE
from sources.demo.model import ScriptedModel
from tests.real.conftest import OpenCodex
from tests.serve.scripted import Served, served
from tests.support.output_schemas import CLOSED, OPEN, ask, words


@pytest.fixture(params=["wheel", "0.89.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def here(open_codex: OpenCodex) -> AsyncGenerator[Served]:
    async with open_codex() as pool:
        backend = CodexBackend(pool, Settings(), "codex", "")
        with closing(backend):
            async with served(backend) as here:
                yield here


def developer(request: Json) -> list[str]:
    items = [item for item in request["input"] if item.get("role") == "developer"]
    return [part["text"] for item in items for part in item["content"]]


async def test_a_schema_reaches_the_model_in_a_form_that_it_takes(
    here: Served, model: ScriptedModel
) -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"schema": CLOSED, "strict": True}, True),
        ({"schema": CLOSED, "strict": False}, True),
        ({"schema": CLOSED}, True),
        ({"schema": OPEN, "strict": False}, False),
        ({"schema": OPEN}, False),
    ]
    for api in ("chat", "responses"):
        for form, enforced in cases:
            answer = await ask(here, api, {"name": "Word", "description": "A word.", **form})
            assert answer.status_code == 200, (api, form, answer.text)
            assert "x-proxy-ignored-params" not in answer.headers
            assert msgspec.json.decode(words(answer)) == {"word": "some word", "apt": True}
            request = model.requests[-1]
            told = "\n".join(developer(request))
            assert "What your final answer is: A word." in told
            assert (FORM_RULE in told) is not enforced
            native = as_json(as_json(request.get("text")).get("format"))
            expected = (True, CLOSED) if enforced else (None, None)
            assert (native.get("strict"), native.get("schema")) == expected, (api, form)


async def test_the_same_open_schema_gives_the_model_the_same_instructions(
    here: Served, model: ScriptedModel
) -> None:
    for _ in range(2):
        assert (await ask(here, "chat", {"name": "Word", "schema": OPEN})).status_code == 200
    first, second = map(developer, model.requests)
    assert first == second
