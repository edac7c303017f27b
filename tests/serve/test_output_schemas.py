"""Schemas and strict tools on the wire: to an API over HTTP, and in the headers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.serve.backends import open_backend
from sources.demo.model import ScriptedModel
from tests.serve.asking import refused
from tests.serve.scripted import ScriptedBackend, served
from tests.serve.test_websocket import heard, say, spoken
from tests.support.output_schemas import CLOSED, OPEN, ask, words

SEARCH: dict[str, Any] = {"name": "search", "parameters": OPEN, "strict": True}
TOOLS: dict[str, list[Json]] = {
    "chat": [{"type": "function", "function": SEARCH}],
    "responses": [{"type": "function", **SEARCH}],
}
PLACES = {"chat": "tools[0].function.strict", "responses": "tools[0].strict"}
SCHEMAS = {"chat": "response_format.json_schema.schema", "responses": "text.format.schema"}


@pytest.mark.parametrize("api", SCHEMAS)
@pytest.mark.parametrize(
    ("form", "strict"),
    [
        ({"schema": CLOSED}, True),
        ({"schema": CLOSED, "strict": True}, True),
        ({"schema": CLOSED, "strict": False}, False),
        ({"schema": OPEN}, False),
        ({"schema": OPEN, "strict": None}, False),
        ({"schema": OPEN, "strict": False}, False),
    ],
)
async def test_an_api_over_http_gets_the_schema_as_given_and_takes_it(
    api: str, form: dict[str, Any], strict: bool
) -> None:
    model = ScriptedModel()
    named = {"name": "Word", "description": "A word.", **form}
    async with (
        model.serving() as url,
        open_backend(Settings(backend=url)) as backend,
        served(backend) as here,
    ):
        answer = await ask(here, api, named)
    assert answer.status_code == 200, answer.text
    assert "x-proxy-ignored-params" not in answer.headers
    assert msgspec.json.decode(words(answer)) == {"word": "some word", "apt": True}
    assert model.requests[-1]["text"]["format"] == {
        "type": "json_schema",
        **named,
        "strict": strict,
    }


@pytest.mark.parametrize("api", SCHEMAS)
async def test_a_strict_schema_that_is_open_is_refused_before_any_backend_is_asked(
    api: str,
) -> None:
    backend = ScriptedBackend()
    async with served(backend) as here:
        answer = await ask(here, api, {"name": "Word", "schema": OPEN, "strict": True})
    assert refused(answer, 400) == ("invalid_json_schema", SCHEMAS[api])
    assert "at the root, additionalProperties must be false" in answer.json()["error"]["message"]
    assert backend.asked == []


# -- strict tools ----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", PLACES)
async def test_an_api_over_http_gets_strict_on_tools_and_checks_them_itself(
    api: str,
) -> None:
    model = ScriptedModel()
    async with (
        model.serving() as url,
        open_backend(Settings(backend=url)) as backend,
        served(backend) as here,
    ):
        answer = await ask(here, api, tools=TOOLS[api], headers={"x-proxy-strict": "1"})
    assert answer.status_code == 200, answer.text
    assert "x-proxy-ignored-params" not in answer.headers
    assert model.requests[-1]["tools"] == [{"type": "function", **SEARCH}]


@pytest.mark.parametrize("api", PLACES)
async def test_a_strict_tool_is_named_where_the_backend_knows_no_such_thing(api: str) -> None:
    async with served() as here:
        answer = await ask(here, api, tools=TOOLS[api], seed=1)
        strict = await ask(here, api, tools=TOOLS[api], headers={"x-proxy-strict": "1"})
    assert answer.headers["x-proxy-ignored-params"] == f"seed, {PLACES[api]}"
    assert refused(strict, 400)[1] == PLACES[api]


async def test_a_strict_tool_is_refused_on_a_socket_that_refuses_what_has_no_effect() -> None:
    async with served() as here, spoken(here, **{"x-proxy-strict": "1"}) as socket:
        await say(socket, "Hi", tools=TOOLS["responses"])
        (error,) = await heard(socket)
    assert error["error"]["param"] == PLACES["responses"]


async def test_many_strict_tools_make_no_endless_header() -> None:
    many = [{"type": "function", **SEARCH, "name": f"f{number}"} for number in range(200)]
    async with served() as here:
        answer = await ask(here, "responses", tools=many)
    assert len(answer.headers["x-proxy-ignored-params"].split(", ")) == 50
