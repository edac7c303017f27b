"""The endpoint with the real Codex behind it, seen from both of its ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import trio

from pipeline.assembly import Settings, recipe
from pipeline.loose_json import Json
from pipeline.serve.backends import CodexBackend, open_backend
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson, ChatOptions
from sources.demo.model import ScriptedModel
from sources.replay import Replay
from tests.real.conftest import OpenCodex
from tests.serve.scripted import CHAT, Served, body, served, tools
from tests.serve.wire import chunks, folded, post, wire

OpenEndpoint: TypeAlias = Callable[..., AbstractAsyncContextManager[Served]]
MANY = 50
TOOLS = tools("localSearch", "readNote")


@pytest.fixture
def version() -> str:
    return "wheel"


@pytest.fixture
def endpoint(open_codex: OpenCodex) -> OpenEndpoint:
    """Opens the endpoint on a Codex of its own, with the settings that are given."""

    @asynccontextmanager
    async def opened(**flags: Any) -> AsyncGenerator[Served]:
        async with open_codex() as pool:
            backend = CodexBackend(pool, Settings(**flags), "codex", "")
            with closing(backend):
                async with served(backend, **flags) as here:
                    yield here

    return opened


def calls_of(message: Json) -> list[str]:
    return [call["id"] for call in message.get("tool_calls", [])]


# -- settings --------------------------------------------------------------------------------------


async def test_at_most_two_calls_are_exactly_two_on_the_wire(endpoint: OpenEndpoint) -> None:
    async with endpoint(tool_block_max=2) as here:
        streamed = await here.ask("BURST", tools=TOOLS, stream=True)
        whole = await here.ask("BURST", tools=TOOLS)
        (line, _) = await here.until_logged(2)
    assert calls_of(folded(chunks(streamed.text))[0]) == ["call_a", "call_b"]
    assert '"tool_call_count":2,"tool_call_truncated":true' in streamed.text
    assert calls_of(whole.json()["choices"][0]["message"]) == ["call_a", "call_b"]
    assert whole.headers["x-codex-tool-call-truncated"] == "true"
    assert (line["tool_call_count"], line["tool_call_truncated"]) == (2, True)


@pytest.mark.parametrize("setting", ["request", "true", "false"])
async def test_who_decides_about_parallel_calls(setting: str, endpoint: OpenEndpoint) -> None:
    counts: dict[bool | None, int] = {}
    async with endpoint(parallel_tool_calls=setting) as here:
        for wish in (None, True, False):
            answer = await here.ask("BURST", tools=TOOLS, parallel_tool_calls=wish)
            counts[wish] = len(calls_of(answer.json()["choices"][0]["message"]))
    assert (
        counts
        == {
            "request": {None: 3, True: 3, False: 1},
            "true": {None: 3, True: 3, False: 3},
            "false": {None: 1, True: 1, False: 1},
        }[setting]
    )


MESSAGES = [
    {"role": "system", "content": "Talk like a pirate"},
    {"role": "user", "content": "TEXT"},
]


def developer(model: ScriptedModel) -> list[str]:
    """What the model was told as by a developer, in its one request."""
    (asked,) = model.requests
    items = [item for item in asked["input"] if item.get("role") == "developer"]
    return [part["text"] for item in items for part in item["content"]]


async def test_the_model_gets_what_the_client_sent(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint() as here:
        assert (await here.ask(messages=MESSAGES)).status_code == 200
    base, told, *_ = developer(model)
    assert told == "Talk like a pirate"
    assert len(base) > 100  # Codex's own


async def test_an_operator_may_leave_out_the_clients_system_prompt(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint(ignore_client_system_prompt=True) as here:
        assert (await here.ask(messages=MESSAGES)).status_code == 200
    (asked,) = model.requests
    assert "pirate" not in msgspec.json.encode(asked).decode()


async def test_an_operator_may_replace_the_base_instructions(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint(base_instructions="Be brief.") as here:
        assert (await here.ask(messages=MESSAGES)).status_code == 200
    assert developer(model)[:2] == ["Be brief.", "Talk like a pirate"]


async def test_turns_are_written_down_for_their_owner_alone_and_can_be_replayed(
    endpoint: OpenEndpoint, tmp_path: Path
) -> None:
    dump, records = tmp_path / "dump.jsonl", tmp_path / "records"
    async with endpoint(dump_events=str(dump), record_dir=str(records)) as here:
        answer = (await here.ask("BURST", tools=TOOLS)).json()
    (record,) = records.iterdir()
    for file in (dump, record):
        assert file.stat().st_mode & 0o777 == 0o600
        assert b"call_a" in file.read_bytes()
    turn = Turn(tools=(Tool("localSearch"), Tool("readNote")))
    again = await recipe(Settings()).run(Replay(record), ChatJson(ChatOptions()), turn)
    assert again.body["choices"] == answer["choices"]


# -- clients ---------------------------------------------------------------------------------------


async def test_fifty_streams_at_once_each_get_their_own_words() -> None:
    said: dict[int, str] = {}
    async with open_backend(Settings(), demo=True) as backend, served(backend) as here:

        async def ask(number: int) -> None:
            words = f"number {number}: " + f"<{number}> " * 40
            with trio.fail_after(50):
                answer = await here.client.post(CHAT, json=body(words, stream=True), timeout=50)
            assert folded(chunks(answer.text))[0]["content"] == f"You said: {words}"
            said[number] = answer.headers["x-request-id"]

        async with trio.open_nursery() as nursery:
            for number in range(MANY):
                nursery.start_soon(ask, number)
        assert here.server.admission.running == 0
    assert len(set(said.values())) == MANY


@pytest.mark.parametrize(
    ("words", "stream", "when"),
    [("SILENT", True, b""), ("HANG", True, b'"Wait"'), ("HANG", False, b"")],
    ids=["before the first byte", "in the middle", "not streamed"],
)
async def test_a_client_that_leaves_interrupts_its_turn_once(
    words: str, stream: bool, when: bytes, endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint(prime_window=60.0) as here:
        counters = here.server.backend.counters
        async with wire(here) as connection:
            await connection.write(post(body(words, stream=stream)))
            await here.until(lambda: model.requests)
            if when:
                await connection.read_until(when)
        await here.until_logged()
        await here.until(lambda: model.leavers == 1)
        assert counters()["sent turn/interrupt"] == 1
        assert here.lines()[0]["client_left"] is True


async def test_codex_ignores_parallel_tool_calls_and_one_call_is_forwarded(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    """What the README says of it: once this fails, there is a way to tell the model."""
    async with endpoint() as here:
        answer = await here.ask("BURST", tools=TOOLS, model="gpt-5.5", parallel_tool_calls=False)
    assert calls_of(answer.json()["choices"][0]["message"]) == ["call_a"]
    assert model.requests[0]["parallel_tool_calls"] is True


async def test_an_api_over_http_gets_parallel_tool_calls_false(
    api: Served, model: ScriptedModel
) -> None:
    answer = await api.ask("BURST", tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(answer.json()["choices"][0]["message"]) == ["call_a"]
    assert model.requests[0]["parallel_tool_calls"] is False


async def test_a_chat_tells_the_model_how_much_to_say_and_codex_has_a_cache_key_of_its_own(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint() as here:
        answer = await here.ask(model="gpt-5.5", verbosity="high", prompt_cache_key="k")
    assert answer.headers["x-proxy-ignored-params"] == "prompt_cache_key"
    (request,) = model.requests
    assert request["text"]["verbosity"] == "high"
    assert request["prompt_cache_key"] not in (None, "", "k")


async def test_models_are_asked_for_once(endpoint: OpenEndpoint) -> None:
    async with endpoint() as here:
        first, second = [(await here.client.get("/v1/models")).json() for _ in range(2)]
        assert first == second
        name = first["data"][0]["id"]
        assert (await here.client.get(f"/v1/models/{name}")).json() == first["data"][0]
        assert here.server.backend.counters()["sent model/list"] <= 1


async def test_a_model_that_codex_hides_is_found_but_not_listed(endpoint: OpenEndpoint) -> None:
    async with endpoint(models="mine") as here:
        listed = [model["id"] for model in (await here.client.get("/v1/models")).json()["data"]]
        known = await here.server.backend.models()
        (hidden, *_) = [name for name in known.unlisted if name not in known.listed]
        assert hidden not in listed
        assert listed == [*known.listed, "mine"]
        assert (await here.client.get(f"/v1/models/{hidden}")).json()["id"] == hidden
        assert (await here.client.get("/v1/models/gpt-none")).status_code == 404


async def test_nothing_that_codex_sends_is_a_problem(endpoint: OpenEndpoint) -> None:
    async with endpoint() as here:
        for words in ("TEXT", "BURST", "THINK"):
            assert (await here.ask(words, tools=TOOLS)).status_code == 200
        await here.until_logged(3)
        counters = here.server.backend.counters()
        assert counters["got turn/started"] == 3
        assert [name for name in counters if name.startswith("problem")] == []


# -- another backend -------------------------------------------------------------------------------


@pytest.fixture
async def api(model_url: str) -> AsyncGenerator[Served]:
    settings = Settings(backend=f"{model_url}/responses")
    async with open_backend(settings) as backend, served(backend) as here:
        yield here


async def test_an_api_over_http_serves_chats_too(api: Served, model: ScriptedModel) -> None:
    streamed = await api.ask("BURST", tools=TOOLS, stream=True)
    assert calls_of(folded(chunks(streamed.text))[0]) == ["call_a", "call_b", "call_c"]
    whole = (await api.ask("TEXT")).json()
    assert whole["choices"][0]["message"]["content"] == "Hello, wörld 🌍!"
    assert whole["usage"]["total_tokens"] == 153
    refused = await api.ask("E429", stream=True)
    assert (refused.status_code, refused.headers["content-type"]) == (429, "application/json")
    assert (await api.client.get("/readyz")).status_code == 200


async def test_an_api_over_http_gets_the_verbosity_and_the_cache_key_from_both_apis(
    api: Served, model: ScriptedModel
) -> None:
    chat = await api.ask(verbosity="high", prompt_cache_key="k")
    wish = {"model": "gpt-5", "input": "Hi", "text": {"verbosity": "high"}, "prompt_cache_key": "k"}
    response = await api.client.post("/v1/responses", json=wish)
    for answer, request in zip((chat, response), model.requests, strict=True):
        assert "x-proxy-ignored-params" not in answer.headers
        assert (request["text"], request["prompt_cache_key"]) == ({"verbosity": "high"}, "k")


async def test_who_leaves_an_api_over_http_is_missed_there(
    api: Served, model: ScriptedModel
) -> None:
    async with wire(api) as connection:
        await connection.write(post(body("HANG", stream=True)))
        await connection.read_until(b'"Wait"')
    await api.until(lambda: model.leavers == 1)


async def test_an_api_over_http_runs_no_mcp_servers(api: Served) -> None:
    answer = await api.client.get("/v1/mcp/tools")
    assert (answer.status_code, answer.json()) == (200, {"object": "list", "data": []})
