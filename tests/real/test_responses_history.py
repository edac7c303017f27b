"""Responses requests on real Codex versions: what the model is offered and what it reads."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from pipeline.events import Event, ToolCall
from pipeline.loose_json import Json
from pipeline.requests.responses import ResponsesRequest
from pipeline.turn import Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel
from sources.demo.script import SCENARIOS, Says, call

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Watch: TypeAlias = Callable[[Pool, Turn], Awaitable[list[Event]]]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]

GRAMMAR = "start: /.+/"
TOOLS: list[Json] = [
    {"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}}},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Changes files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
    },
    {
        "type": "namespace",
        "name": "mcp__notes__",
        "description": "Notes of the user.",
        "tools": [
            {"type": "function", "name": "search", "parameters": {"type": "object"}},
            {"type": "custom", "name": "exec", "description": "Runs code."},
        ],
    },
]
OFFERED = ["search", "client_apply_patch", "client_mcp__notes__search", "client_mcp__notes__exec"]
PATCH = '{ "input": "*** Begin\\n\\"a\\"" }'
"""The model's own JSON, which no encoder would write so."""


@pytest.fixture(params=["wheel", "0.166.0"])
def version(request: pytest.FixtureRequest) -> str:
    """The versions that take tools and history as what they are."""
    return str(request.param)


def asked(*items: Json, **more: Any) -> Turn:
    body = {"model": "gpt-5", "input": list(items), "tools": TOOLS, "store": False, **more}
    return ResponsesRequest.from_json(body).turn()


def hello(words: str = "Hello.") -> Json:
    return {"role": "user", "content": words}


async def test_the_model_is_offered_every_kind_of_tool_as_a_function(
    backend: Pool, ask: Ask, model: ScriptedModel
) -> None:
    await ask(backend, asked(hello()))
    (request,) = model.requests
    assert [(tool["type"], tool["name"]) for tool in request["tools"]] == [
        ("function", name) for name in OFFERED
    ]
    patch, search = request["tools"][1:3]
    assert patch["parameters"]["required"] == ["input"]
    assert patch["description"].endswith(GRAMMAR)
    assert "Notes of the user." in search["description"]


async def test_sealed_reasoning_and_calls_that_come_back_reach_the_model(
    backend: Pool, ask: Ask, model: ScriptedModel
) -> None:
    sealed: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    custom: Json = {
        "type": "custom_tool_call",
        "call_id": "call_a",
        "name": "apply_patch",
        "input": "x",
    }
    spaced: Json = {
        "type": "function_call",
        "call_id": "call_b",
        "name": "search",
        "arguments": "{}",
    }
    await ask(
        backend,
        asked(
            {"role": "developer", "content": "Be brief."},
            hello("First."),
            sealed,
            {"type": "custom_tool_call", **custom},
            {"type": "function_call", **spaced, "namespace": "mcp__notes__"},
            {"type": "custom_tool_call_output", "call_id": "call_a", "output": "done"},
            {"type": "function_call_output", "call_id": "call_b", "output": "found"},
            {"role": "assistant", "content": "Well."},
            hello("Second."),
            instructions="You are a poet.",
        ),
    )
    (request,) = model.requests
    items = request["input"]
    told = [
        part["text"]
        for item in items
        if item.get("role") == "developer"
        for part in item["content"]
    ]
    assert any("You are a poet.\n\nBe brief." in words for words in told)
    seen = [item for item in items if item.get("role") != "developer"]
    assert [item.get("role") or item["type"] for item in seen] == [
        "user",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "assistant",
        "user",
    ]
    assert seen[1]["encrypted_content"] == "sealed"
    calls = [(item["name"], item["arguments"]) for item in seen[2:4]]
    assert calls == [("client_apply_patch", '{"input":"x"}'), ("client_mcp__notes__search", "{}")]


@pytest.fixture
def patching(monkeypatch: pytest.MonkeyPatch) -> None:
    says = Says(
        (
            call("a", "client_apply_patch", PATCH),
            call("b", "client_mcp__notes__exec", '{"input":"1"}'),
        )
    )
    monkeypatch.setitem(SCENARIOS, "PATCH", says)


@pytest.mark.usefixtures("patching")
async def test_calls_leave_under_names_that_lead_back_to_the_clients(
    backend: Pool, watch: Watch
) -> None:
    turn = asked(hello("PATCH"))
    calls = [event for event in await watch(backend, turn) if isinstance(event, ToolCall)]
    assert [(one.name, one.arguments) for one in calls] == [
        ("apply_patch", PATCH),
        ("mcp__notes__exec", '{"input":"1"}'),
    ]
    tools = [turn.tool(one.name) for one in calls]
    assert [(t.kind, t.namespace, t.own_name or t.name) for t in tools if t is not None] == [
        ("custom", None, "apply_patch"),
        ("custom", "mcp__notes__", "exec"),
    ]


@pytest.mark.usefixtures("patching")
async def test_a_held_turn_goes_on_with_the_outputs_of_custom_tools_in_namespaces(
    backend: Pool, ask: Ask, model: ScriptedModel, until: Until
) -> None:
    await ask(backend, asked(hello("PATCH")))
    await until(lambda: len(backend.kept) == 1)
    custom: Json = {"type": "custom_tool_call", "call_id": "call_a", "name": "apply_patch"}
    output: Json = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "done"}
    spaced: Json = {"call_id": "call_b", "name": "exec", "namespace": "mcp__notes__", "input": "1"}
    follow_up = asked(
        hello("PATCH"),
        {**custom, "input": '*** Begin\n"a"'},
        {**custom, **spaced},
        output,
        {**output, "call_id": "call_b"},
    )
    answer = await ask(backend, follow_up)
    assert answer.body["choices"][0]["message"]["content"] == "The tool said: done"
    assert len(backend.kept) == 0
    first, second = model.requests
    assert second["prompt_cache_key"] == first["prompt_cache_key"]
    made = [item["arguments"] for item in second["input"] if item["type"] == "function_call"]
    assert made == [PATCH, '{"input":"1"}']


def failed(call_id: str) -> Json:
    output = {"content": "it broke", "success": False}
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def seen(request: Json) -> str:
    """All that the model reads, without the escapes of any level of JSON."""
    return json.dumps(request["input"]).replace("\\", "")


@pytest.mark.parametrize("version", ["wheel", "0.166.0", "0.89.0"])  # the last one gets it as text
async def test_the_model_reads_once_that_a_tool_failed_in_the_history(
    backend: Pool, ask: Ask, model: ScriptedModel
) -> None:
    made = {"type": "function_call", "call_id": "call_b", "name": "search", "arguments": "{}"}
    await ask(backend, asked(hello(), made, failed("call_b"), hello("Second.")))
    (request,) = model.requests
    assert seen(request).count("[the tool call failed]nit broke") == 1
    assert seen(request).count("the tool call failed") == 1


@pytest.mark.usefixtures("patching")
async def test_the_model_reads_once_that_a_tool_of_a_held_turn_failed(
    backend: Pool, ask: Ask, model: ScriptedModel, until: Until
) -> None:
    await ask(backend, asked(hello("PATCH")))
    await until(lambda: len(backend.kept) == 1)
    custom: Json = {"type": "custom_tool_call", "call_id": "call_a", "name": "apply_patch"}
    spaced: Json = {"call_id": "call_b", "name": "exec", "namespace": "mcp__notes__", "input": "1"}
    made = [{**custom, "input": '*** Begin\n"a"'}, {**custom, **spaced}]
    fine = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "done"}
    await ask(backend, asked(hello("PATCH"), *made, fine, failed("call_b")))
    first, second = model.requests
    assert second["prompt_cache_key"] == first["prompt_cache_key"]  # it was held
    assert seen(second).count("[the tool call failed]nit broke") == 1
    assert seen(second).count("the tool call failed") == 1


async def test_the_verbosity_reaches_the_model(
    backend: Pool, ask: Ask, model: ScriptedModel
) -> None:
    for verbosity in ("high", None):  # Codex tells only the models that it knows to listen
        await ask(backend, asked(hello(), model="gpt-5.5", text={"verbosity": verbosity}))
    told, untold = model.requests
    assert told["text"]["verbosity"] == "high"
    assert untold.get("text", {}).get("verbosity") != "high"
