"""What an operator can switch on, on the real Codex: off unless he does, and working if so."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from attrs import evolve

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.serve.backends import CodexBackend
from pipeline.turn import Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel
from sources.demo.script import SCENARIOS, Says, call, text
from tests.serve.scripted import served
from tests.support.mcp_server import HARMLESS, QUERY

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]

CLIENTS = (Tool("localSearch"),)
UNLISTED = "gpt-5"
HINTED = {"annotations": HARMLESS}
SHOUTER = {f"mcp__shouter.{name}" for name in ("engrave", "fail", "shout")}


@pytest.fixture(params=["wheel", "0.166.0"])
def version(request: pytest.FixtureRequest) -> str:
    """The versions of today; the old one always offers some of its tools."""
    return str(request.param)


@pytest.fixture
def overrides(overrides: dict[str, str]) -> dict[str, str]:
    """The scripted model, as one whose provider can search the web for newer models too."""
    return overrides | {"model_providers.scripted.supports_standalone_web_search": "true"}


def offered(request: Json) -> set[str]:
    """The names of all tools that a request offers its model but the client's own."""
    groups = list(request.get("tools", []))
    for item in request["input"]:
        if item["type"] == "additional_tools":
            groups += item["tools"]
    found: set[str] = set()
    for group in groups:
        name = group.get("name", group["type"])
        space = "" if name == "functions" else f"{name}."
        inner = group.get("tools")
        found |= {name} if inner is None else {f"{space}{tool['name']}" for tool in inner}
    assert "localSearch" in found
    return found - {"localSearch"}


async def offers(pool: Pool, ask: Ask, turn: Turn, model: ScriptedModel) -> list[set[str]]:
    """What two models are offered: one that Codex knows nothing of, and one of its catalogue."""
    listed = await (await pool.lease()).client.request("model/list", {})
    found: list[set[str]] = []
    for name in (UNLISTED, listed["data"][0]["model"]):
        await ask(pool, evolve(turn, model=name))
        found.append(offered(model.requests[-1]))
    return found


async def test_only_enabled_tools_are_offered(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    """Not even the MCP servers that the owner of the home uses himself."""
    async with open_codex(home=home) as pool:
        turn = said("TEXT", tools=CLIENTS)
        assert await offers(pool, ask, turn, model) == [set(), set()]


@pytest.mark.parametrize("version", ["wheel", "0.166.0", "0.89.0"])
async def test_the_mcp_servers_of_a_home_are_not_even_started(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    async with open_codex(home=home) as pool:
        await ask(pool, said("TEXT", tools=CLIENTS))
    assert "shouter" not in json.dumps(model.requests)
    assert not (tmp_path / "mcp.log").exists()


async def test_a_search_of_the_web_can_be_switched_on(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    async with open_codex(home=home, web_search=True) as pool:
        found = await offers(pool, ask, said("TEXT", tools=CLIENTS), model)
    assert [tools and tools <= {"web_search", "web.run"} for tools in found] == [True, True]


async def test_looking_at_pictures_can_be_switched_on(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    async with open_codex(home=home, view_image=True) as pool:
        found = await offers(pool, ask, said("TEXT", tools=CLIENTS), model)
    assert found == [{"view_image"}, {"view_image"}]


async def test_the_tools_of_mcp_servers_can_be_switched_on(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    async with open_codex(home=home, mcp_servers=True, mcp_tools=True) as pool:
        found = await offers(pool, ask, said("TEXT", tools=CLIENTS), model)
    for tools in found:
        assert tools >= SHOUTER
        assert all("mcp" in tool for tool in tools)


@pytest.mark.parametrize("version", ["wheel", "0.166.0", "0.89.0"])
async def test_mcp_servers_are_listed_and_the_model_is_not_offered_their_tools(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    settings = Settings(codex_mcp_servers=True)
    async with open_codex(home=home, mcp_servers=True) as pool:
        with closing(CodexBackend(pool, settings, "codex", "")) as backend:
            async with served(backend) as here:
                told = [(await here.client.get("/v1/mcp/tools")).json() for _ in range(2)]
        await ask(pool, said("TEXT", tools=CLIENTS, verbosity="low"))
        await ask(pool, said("TEXT", tools=CLIENTS))
    listed = [
        {"server": "shouter", "name": name, "description": "", "input_schema": QUERY, **more}
        for name, more in (("engrave", {}), ("fail", HINTED), ("shout", HINTED))
    ]
    assert told == [{"object": "list", "data": listed}] * 2
    assert len(model.requests) == 2
    assert "shouter" not in json.dumps(model.requests)


async def test_codex_with_its_servers_hidden_offers_nothing_and_starts_them_only_to_list_them(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    """Not even its tools for the resources of MCP servers are offered."""
    async with open_codex(home=home, mcp_servers=True) as pool:
        with closing(CodexBackend(pool, Settings(codex_mcp_servers=True), "codex", "")) as backend:
            assert await backend.mcp_tools() == await backend.mcp_tools() != []
        turn = said("TEXT", tools=CLIENTS)
        assert await offers(pool, ask, turn, model) == [set(), set()]
    assert (tmp_path / "mcp.log").read_text().splitlines().count("initialize") == 1


async def test_a_call_of_a_hidden_mcp_tool_is_not_run(
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model can call what it was never offered."""
    monkeypatch.setitem(SCENARIOS, "SHOUT", Says((mcp_call("m", "shout", word="hear"),)))
    async with open_codex(home=home, mcp_servers=True) as pool:
        answer = await ask(pool, said("SHOUT", tools=CLIENTS), Settings())
    assert not (tmp_path / "mcp.log").exists()
    assert "HEAR!" not in json.dumps(answer.body)


async def test_servers_stay_hidden_when_their_owner_changes_his_configuration(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, home: Path
) -> None:
    """Codex reads it at every turn: another server is hidden too, a lost one is not missed."""
    config = home / "config.toml"
    async with open_codex(home=home, mcp_servers=True) as pool:
        await ask(pool, said("TEXT", tools=CLIENTS))
        config.write_text(config.read_text().replace("shouter", '"my.own"'))
        await ask(pool, said("TEXT", tools=CLIENTS))
        config.write_text(config.read_text().replace('"my.own"', "other"))
        await ask(pool, said("TEXT", tools=CLIENTS))
        config.write_text("")
        await ask(pool, said("TEXT", tools=CLIENTS))
    assert [offered(request) for request in model.requests] == [set()] * 4


async def test_a_server_that_does_not_start_is_named_in_the_log_and_the_others_are_listed(
    open_codex: OpenCodex, home: Path
) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[mcp_servers.broken]\ncommand = "/no/such/server"\n')
    async with open_codex(home=home, mcp_servers=True) as pool:
        with closing(CodexBackend(pool, Settings(codex_mcp_servers=True), "codex", "")) as backend:
            async with served(backend) as here:
                listed = (await here.client.get("/v1/mcp/tools")).json()["data"]
                (line,) = here.lines("an MCP server lists no tools")
    assert {tool["server"] for tool in listed} == {"shouter"}
    assert (line["level"], line["server"]) == ("warning", "broken")
    assert "No such file" in line["reason"]


async def test_servers_that_are_not_enabled_are_not_listed(
    open_codex: OpenCodex, home: Path, tmp_path: Path
) -> None:
    async with open_codex(home=home) as pool:
        with closing(CodexBackend(pool, Settings(), "codex", "")) as backend:
            assert await backend.mcp_tools() == []
    assert not (tmp_path / "mcp.log").exists()


def mcp_call(letter: str, name: str, **arguments: Any) -> Json:
    return {**call(letter, name, json.dumps(arguments)), "namespace": "mcp__shouter"}


async def test_a_call_of_an_mcp_tool_is_run_by_codex_and_no_client_hears_of_it(
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shout = Says((text("One moment. "), mcp_call("m", "shout", word="hear")))
    monkeypatch.setitem(SCENARIOS, "SHOUT", shout)
    async with open_codex(home=home, mcp_servers=True, mcp_tools=True) as pool:
        answer = await ask(pool, said("SHOUT", tools=CLIENTS), Settings())
    assert (tmp_path / "mcp.log").read_text().splitlines().count("tools/call") == 1
    (output,) = [i for i in model.requests[-1]["input"] if i["type"] == "function_call_output"]
    assert "HEAR!" in json.dumps(output)
    (choice,) = answer.body["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith("One moment. The tool said: ")


@pytest.mark.parametrize("approved", [False, True])
async def test_an_mcp_tool_that_may_change_things_runs_only_if_the_operator_approves_of_it(
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    home: Path,
    tmp_path: Path,
    approved: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever can reach the server could call it: switching servers on is not approval."""
    if approved:
        with (home / "config.toml").open("a") as config:
            config.write('default_tools_approval_mode = "approve"\n')
    monkeypatch.setitem(SCENARIOS, "ENGRAVE", Says((mcp_call("m", "engrave", word="x"),)))
    async with open_codex(home=home, mcp_servers=True, mcp_tools=True) as pool:
        answer = await ask(pool, said("ENGRAVE", tools=CLIENTS), Settings())
    assert ("tools/call" in (tmp_path / "mcp.log").read_text()) == approved
    assert answer.body["choices"][0]["finish_reason"] == "stop"


async def test_a_failing_mcp_tool_is_no_news_for_a_client_either(
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCENARIOS, "FAIL", Says((mcp_call("m", "fail", word="x"),)))
    async with open_codex(home=home, mcp_servers=True, mcp_tools=True) as pool:
        answer = await ask(pool, said("FAIL", tools=CLIENTS), Settings())
    (choice,) = answer.body["choices"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)


async def test_a_client_gets_its_own_calls_behind_those_of_an_mcp_tool(
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Says((mcp_call("m", "shout", word="x"), call("c", "localSearch", "{}")))
    monkeypatch.setitem(SCENARIOS, "BOTH", both)
    async with open_codex(home=home, mcp_servers=True, mcp_tools=True) as pool:
        answer = await ask(pool, said("BOTH", tools=CLIENTS), Settings())
    (choice,) = answer.body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [one["id"] for one in choice["message"]["tool_calls"]] == ["call_c"]
