"""What real Codex versions send to the model: only what the client sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import pytest
from attrs import evolve

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.turn import Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo import script
from sources.demo.model import ScriptedModel
from sources.demo.script import SCENARIOS, Says, call

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = Tool("localSearch", QUERY, "Looks into the notes.")
READ = Tool("readNote", {"type": "object", "properties": {"path": {"type": "string"}}}, "Reads.")
EXEC = Tool("exec_command", {"type": "object", "properties": {"cmd": {"type": "string"}}}, "Runs.")
OLD = "0.89.0"
OLD_TOOLS = [
    "list_mcp_resources",
    "list_mcp_resource_templates",
    "read_mcp_resource",
    "update_plan",
    "view_image",
]
"""What the old version always offers to its model."""
KEPT_TOOL = "no setting takes view_image away from its model"


def calls(answer: ChatCompletion) -> list[tuple[str, str]]:
    (choice,) = answer.body["choices"]
    functions = [one["function"] for one in choice["message"].get("tool_calls", [])]
    return [(function["name"], function["arguments"]) for function in functions]


def words(item: Json) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def offered(request: Json) -> list[str]:
    """The names of all tools that a request offers its model, wherever it does."""
    return [tool["name"] for tool in script.offered(request)]


async def test_the_model_is_offered_the_tools_of_the_client_and_no_others(
    version: str, backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    await ask(backend, said("TEXT"))
    assert offered(model.requests[-1]) == (OLD_TOOLS if version == OLD else [])
    await ask(backend, said("TEXT", tools=(SEARCH, READ, EXEC)))
    request = model.requests[-1]
    if version == OLD:
        assert offered(request) == OLD_TOOLS
        (rules,) = (words(i) for i in request["input"] if "<tool_call>" in words(i))
        declared = [json.loads(line) for line in rules.splitlines() if line.startswith("{")]
        assert [(tool["name"], tool["parameters"]) for tool in declared] == [
            (tool.name, tool.parameters) for tool in (SEARCH, READ, EXEC)
        ]
        return
    assert offered(request) == ["localSearch", "readNote", "client_exec_command"]
    first = request["tools"][0]
    assert (first["description"], first["parameters"]) == (SEARCH.description, QUERY)


async def test_every_model_that_codex_knows_gets_the_same(
    version: str, backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    listed = await (await backend.lease()).client.request("model/list", {})
    turn = said("TEXT", tools=(SEARCH, EXEC), base_instructions="You are Ada.")
    found: dict[str, list[str]] = {}
    told: dict[str, list[str]] = {}
    for name in [entry["model"] for entry in listed["data"]]:
        await ask(backend, evolve(turn, model=name))
        request = model.requests[-1]
        found[name] = offered(request)
        told[name] = [words(item) for item in request["input"] if item["type"] == "message"]
    assert found
    if version == OLD:
        some = [*OLD_TOOLS[:-1], "apply_patch", OLD_TOOLS[-1]]
        assert found == dict.fromkeys(found, some)
        return
    assert found == {name: ["localSearch", "client_exec_command"] for name in found}
    assert told == {name: ["You are Ada.", "TEXT"] for name in told}


async def test_a_tool_may_have_any_name_that_the_api_allows(
    version: str, backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    names = ["mcp__files__read", "web_search", "apply_patch", "spawn_agent", "exec", "x" * 64, "-1"]
    await ask(backend, said("TEXT", tools=tuple(Tool(name) for name in names)))
    request = model.requests[-1]
    if version != OLD:
        assert len({*offered(request)}) == len(offered(request)) == len(names)
        return
    (rules,) = (words(item) for item in request["input"] if "<tool_call>" in words(item))
    declared = [json.loads(line) for line in rules.splitlines() if line.startswith("{")]
    assert [tool["name"] for tool in declared] == names


async def test_a_tool_of_a_name_that_codex_keeps_for_itself_is_called_by_its_own_name(
    version: str, backend: Pool, ask: Ask, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "exec_command" if version == OLD else "client_exec_command"
    monkeypatch.setitem(SCENARIOS, "EXEC", Says((call("e", name, '{"cmd": "ls"}'),)))
    answer = await ask(backend, said("EXEC", tools=(EXEC,)))
    assert calls(answer) == [("exec_command", '{"cmd": "ls"}')]


async def test_a_model_that_calls_the_tools_of_codex_gets_none_of_them(
    backend: Pool,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("open sesame")
    attempts = {
        "exec_command": {"cmd": f"cat {secret}"},
        "shell": {"command": ["cat", str(secret)]},
        "shell_command": {"command": f"cat {secret}"},
        "local_shell": {"command": ["cat", str(secret)]},
        "read_mcp_resource": {"server": "files", "uri": secret.as_uri()},
    }
    for name, arguments in attempts.items():
        attempt = call("x", name, json.dumps(arguments))
        monkeypatch.setitem(SCENARIOS, "ATTEMPT", Says((attempt,)))
        await ask(backend, said("ATTEMPT"), Settings(stop_after_tools=False))
        (output,) = (i["output"] for i in model.requests[-1]["input"] if "output" in i)
        assert "open sesame" not in json.dumps(output), name
        assert "unsupported call" in output or "unknown MCP server" in output, name


@pytest.mark.parametrize(
    "version",
    [
        "wheel",
        "0.166.0",
        pytest.param(OLD, marks=pytest.mark.xfail(strict=True, reason=KEPT_TOOL)),
    ],
)
async def test_a_model_cannot_open_images_that_were_not_sent(
    backend: Pool,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    picture: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pixel = picture.partition(",")[2]
    secret = tmp_path / "secret.png"
    secret.write_bytes(base64.b64decode(pixel))
    look = call("x", "view_image", json.dumps({"path": str(secret)}))
    monkeypatch.setitem(SCENARIOS, "LOOK", Says((look,)))
    await ask(backend, said("LOOK"))
    assert pixel not in json.dumps(model.requests)


async def test_nothing_of_the_environment_around_us_reaches_the_model(
    version: str,
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for folder in (tmp_path, tmp_path / ".codex"):
        folder.mkdir(exist_ok=True)
        (folder / "AGENTS.md").write_text("The watchword is xyzzy.")
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-xyzzy")
    monkeypatch.setenv("USER", "xyzzy")
    async with open_codex() as backend:
        await ask(backend, said("TEXT", base_instructions="You are Ada."))
    (request,) = model.requests
    told = json.dumps(request)
    assert "xyzzy" not in told
    assert str(tmp_path) not in told
    if version != OLD:
        assert [words(item) for item in request["input"]] == ["You are Ada.", "TEXT"]
