"""Chat requests on the real Codex of the wheel, seen from the model's side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.requests.chat import ChatRequest
from pipeline.requests.shared.answer_form import AS_JSON
from pipeline.requests.shared.conversation import NO_OUTPUT
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Asked: TypeAlias = Callable[..., Awaitable[Json]]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]

TOOL = {
    "type": "function",
    "function": {"name": "localSearch", "parameters": {"type": "object"}},
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture
def version() -> str:
    return "wheel"


@pytest.fixture
def asked(backend: Pool, ask: Ask, model: ScriptedModel) -> Asked:
    """Sends a chat request; gives what the model was asked."""

    async def send(*messages: Json, settings: Settings | None = None, **fields: Any) -> Json:
        body = {"model": "gpt-5", "messages": list(messages), **fields}
        turn = ChatRequest.from_json(body).turn(settings)
        await ask(backend, turn)
        return model.requests[-1]

    return send


def conversation(request: Json) -> list[Json]:
    """The items after Codex's own instructions, less their ids."""
    return [
        {key: value for key, value in item.items() if key != "id"} for item in request["input"][1:]
    ]


def message(role: str, *content: Json | str, kind: str = "input_text") -> Json:
    parts = [{"type": kind, "text": one} if isinstance(one, str) else one for one in content]
    return {"type": "message", "role": role, "content": parts}


def calling(*ids: str, content: object = None) -> Json:
    function = {"name": "localSearch", "arguments": '{"query":  "a"}'}
    made = [{"id": one, "type": "function", "function": function} for one in ids]
    return {"role": "assistant", "content": content, "tool_calls": made}


def call(call_id: str) -> Json:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": "localSearch",
        "arguments": '{"query":  "a"}',
    }


def output(call_id: str, words: object) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": words}


async def test_every_role_reaches_the_model_in_its_place(asked: Asked, picture: str) -> None:
    image = {"type": "image_url", "image_url": {"url": picture, "detail": "low"}}
    request = await asked(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Look."},
        calling("call_1", "call_2", "call_3", content="I look."),
        {"role": "tool", "tool_call_id": "call_2", "content": "two"},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "one"}, image],
        },
        {"role": "system", "content": "Now in French."},
        {"role": "user", "content": [{"type": "text", "text": "TEXT"}, image]},
        tools=[TOOL],
    )
    seen = {"type": "input_image", "image_url": picture, "detail": "auto"}
    assert conversation(request) == [
        message("developer", "Be brief.\n\nBe kind."),
        message("user", "Look."),
        message("assistant", "I look.", kind="output_text"),
        call("call_1"),
        call("call_2"),
        call("call_3"),
        output("call_2", "two"),
        output("call_1", [{"type": "input_text", "text": "one"}, seen]),
        output("call_3", NO_OUTPUT),
        message("developer", "Now in French."),
        message("user", "TEXT", seen),
    ]


async def test_calls_of_legacy_functions_reach_the_model_as_calls(asked: Asked) -> None:
    request = await asked(
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "localSearch", "arguments": "{}"},
        },
        {"role": "function", "name": "localSearch", "content": "nothing"},
        functions=[TOOL["function"]],
    )
    _, made, given = conversation(request)
    assert (made["type"], made["name"], made["arguments"]) == ("function_call", "localSearch", "{}")
    assert given == output(made["call_id"], "nothing")
    assert [tool["name"] for tool in request["tools"]] == ["localSearch"]


async def test_a_schema_and_an_effort_reach_the_model(asked: Asked) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "A", "schema": SCHEMA, "strict": True}}
    request = await asked(
        {"role": "user", "content": "TEXT"}, response_format=form, reasoning_effort="high"
    )
    told = request["text"]["format"]
    assert (told["type"], told["strict"], told["schema"]) == ("json_schema", True, SCHEMA)
    assert request["reasoning"] == {"effort": "high", "summary": "auto"}


async def test_codex_asks_for_reasoning_of_its_own_accord(asked: Asked) -> None:
    request = await asked({"role": "user", "content": "TEXT"})
    assert request["reasoning"]["summary"] == "auto"


async def test_a_request_for_json_reaches_the_model_as_text(asked: Asked) -> None:
    request = await asked(
        {"role": "user", "content": "TEXT"}, response_format={"type": "json_object"}
    )
    assert conversation(request) == [message("developer", AS_JSON), message("user", "TEXT")]


async def test_a_chat_of_system_messages_alone_is_answered(asked: Asked) -> None:
    request = await asked({"role": "system", "content": "Say TEXT."})
    assert conversation(request) == [message("developer", "Say TEXT.")]


async def test_the_operator_can_replace_and_leave_out_instructions(asked: Asked) -> None:
    settings = Settings.from_env(
        {"PROXY_BASE_INSTRUCTIONS": "You are Ada.", "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT": "1"}
    )
    request = await asked(
        {"role": "system", "content": "Be evil."},
        {"role": "user", "content": "TEXT"},
        settings=settings,
    )
    base, *said = request["input"]
    assert base["content"][0]["text"] == "You are Ada."
    assert [item["content"][0]["text"] for item in said] == ["TEXT"]


async def test_a_stop_sequence_ends_the_text_and_the_generation(
    backend: Pool, ask: Ask, model: ScriptedModel, until: Until
) -> None:
    messages = [{"role": "user", "content": "HANG"}]
    request = ChatRequest.from_json({"model": "gpt-5", "messages": messages, "stop": ["ai", "x"]})
    answer = await ask(backend, request.turn())
    (choice,) = answer.body["choices"]
    assert choice["message"]["content"] == "W"
    assert choice["finish_reason"] == "stop"
    await until(lambda: model.leavers == 1)


async def test_a_picture_that_a_tool_gave_continues_a_held_turn(
    asked: Asked, backend: Pool, model: ScriptedModel, picture: str, until: Until
) -> None:
    question = {"role": "user", "content": "ONECALL"}
    await asked(question, tools=[TOOL])
    await until(lambda: len(backend.kept) == 1)
    made = {"id": "call_a", "type": "function"}
    function = {"name": "localSearch", "arguments": '{"query": "x",  "n": 1.0}'}
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": picture, "detail": "low"}},
    ]
    request = await asked(
        question,
        {"role": "assistant", "content": None, "tool_calls": [{**made, "function": function}]},
        {"role": "tool", "tool_call_id": "call_a", "content": parts},
        tools=[TOOL],
    )
    assert len(backend.kept) == 0
    first, second = model.requests
    assert first["prompt_cache_key"] == second["prompt_cache_key"]  # one thread, one turn
    words, image = conversation(request)[-1]["output"]
    assert words == {"type": "input_text", "text": "see"}
    assert (image["type"], image["image_url"]) == ("input_image", picture)
