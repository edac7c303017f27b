"""What the model behind real Codex versions gets if a tool is chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from pipeline.loose_json import Json
from pipeline.turn import NamedTool, Tool, ToolChoice, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]

TOOLS = (Tool("localSearch"), Tool("readNote"), Tool("exec_command"))
ALL = ["localSearch", "readNote", "client_exec_command"]
SOME = "You must call one of your tools, or several of them, now."


@pytest.fixture(params=["wheel", "0.166.0"])
def version(request: pytest.FixtureRequest) -> str:
    """The versions with tool definitions; the old one gets them as a prompt."""
    return str(request.param)


def told(request: Json) -> str:
    messages = [item for item in request["input"] if item["type"] == "message"]
    return "\n".join(part["text"] for item in messages for part in item["content"])


@pytest.mark.parametrize(
    ("choice", "offered", "rule"),
    [
        ("auto", ALL, None),
        ("none", [], None),
        ("required", ALL, SOME),
        (NamedTool("readNote"), ["readNote"], "You must call the tool `readNote` now."),
        (
            NamedTool("exec_command"),
            ["client_exec_command"],
            "You must call the tool `client_exec_command` now.",
        ),
    ],
)
async def test_a_choice_reaches_the_model_as_its_tools_and_a_rule(
    backend: Pool,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    choice: ToolChoice,
    offered: list[str],
    rule: str | None,
) -> None:
    await ask(backend, said("TEXT", tools=TOOLS, tool_choice=choice))
    (request,) = model.requests
    assert [tool["name"] for tool in request.get("tools", [])] == offered
    words = told(request)
    assert words.count("You must call") == (rule is not None)
    assert rule is None or rule in words


async def test_a_chosen_tool_is_called_and_followed_up(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    turn = said("please readNote", tools=TOOLS, tool_choice=NamedTool("readNote"))
    answer = await ask(backend, turn)
    (call,) = answer.body["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "readNote"
    output: Json = {"type": "function_call_output", "call_id": call["id"], "output": "dear diary"}
    made: Json = {"type": "function_call", "call_id": call["id"], **call["function"]}
    freed = said(
        "please readNote", tools=TOOLS, tool_choice="auto", items=(*turn.items, made, output)
    )
    answer = await ask(backend, freed)
    assert answer.body["choices"][0]["message"]["content"] == "The tool said: dear diary"
    assert "You must call" in told(model.requests[0])
    assert "You must call" not in told(model.requests[-1])
    assert [tool["name"] for tool in model.requests[-1]["tools"]] == ALL
