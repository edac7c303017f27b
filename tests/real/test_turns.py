"""Turns on three real Codex versions over stdio: what the client gets, and what the model got."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from attrs import evolve

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event, Failed, ReasoningItem, TurnEnd
from pipeline.loose_json import Json
from pipeline.turn import OutputSchema, Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.demo.model import ScriptedModel

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Watch: TypeAlias = Callable[[Pool, Turn], Awaitable[list[Event]]]
Said: TypeAlias = Callable[..., Turn]

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = Tool("localSearch", QUERY, "Looks into the notes.")
READ = Tool("readNote", {"type": "object", "properties": {"path": {"type": "string"}}}, "Reads.")
EXEC = Tool("exec_command", {"type": "object", "properties": {"cmd": {"type": "string"}}}, "Runs.")
TOOLS = (SEARCH, READ)
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 33,
    "total_tokens": 153,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 9},
}
OLD = "0.89.0"


def message(answer: ChatCompletion) -> dict[str, Any]:
    (choice,) = answer.body["choices"]
    return {"finish_reason": choice["finish_reason"], **choice["message"]}


def calls(answer: ChatCompletion) -> list[tuple[str, str]]:
    functions = [one["function"] for one in message(answer).get("tool_calls", [])]
    return [(function["name"], function["arguments"]) for function in functions]


def words(item: Json) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def without_ids(items: list[Json]) -> list[Json]:
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


def from_user(text: str) -> Json:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


# -- what the client gets --------------------------------------------------------------------------


async def test_text_comes_whole_with_its_exact_usage(backend: Pool, ask: Ask, said: Said) -> None:
    answer = await ask(backend, said("say TEXT now"))
    assert message(answer)["content"] == "Hello, wörld 🌍!"
    assert message(answer)["finish_reason"] == "stop"
    assert answer.body["usage"] == USAGE


async def test_calls_come_once_in_order_with_their_verbatim_arguments(
    backend: Pool, ask: Ask, said: Said
) -> None:
    one = await ask(backend, said("ONECALL", tools=TOOLS))
    assert calls(one) == [("localSearch", '{"query": "x",  "n": 1.0}')]
    assert message(one)["content"] == "Let me look."
    assert message(one)["finish_reason"] == "tool_calls"
    burst = await ask(backend, said("BURST", tools=TOOLS))
    assert calls(burst) == [
        ("localSearch", '{"query":"a"}'),
        ("readNote", '{"path":"b.md"}'),
        ("localSearch", '{"query":"a"}'),
    ]
    ids = [one["id"] for one in message(burst)["tool_calls"]]
    assert ids == ["call_a", "call_b", "call_c"]
    assert message(burst)["content"] == "On it."
    assert burst.body["usage"] == USAGE


async def test_calls_written_as_text_are_calls_and_the_narration_after_them_is_cut(
    backend: Pool, ask: Ask, said: Said
) -> None:
    block = await ask(backend, said("USETOOL", tools=TOOLS))
    arguments = '{"query":"meeting notes & todos","salientTerms":["meeting","todo"]}'
    assert calls(block) == [("localSearch", arguments)]
    assert message(block)["content"] == "I'll search your vault.\n\n"
    sentinel = await ask(backend, said("SENTINEL", tools=TOOLS))
    assert calls(sentinel) == [("localSearch", '{"query":"x"}')]
    assert message(sentinel)["content"] == "Looking.\n"
    untouched = await ask(backend, said("USETOOL"))
    assert message(untouched)["content"].count("<use_tool>") == 1
    assert not calls(untouched)


async def test_reasoning_comes_apart_from_the_answer(
    backend: Pool, ask: Ask, watch: Watch, said: Said
) -> None:
    answer = await ask(backend, said("REASON"))
    assert message(answer)["reasoning_content"] == "**Thinking** hard"
    assert message(answer)["content"] == "42"
    events = await watch(backend, said("REASON"))
    (sealed,) = (event for event in events if isinstance(event, ReasoningItem))
    assert sealed.encrypted_content == "gAAAA"
    assert sealed.summary == ("**Thinking** hard",)


# -- what the model gets ---------------------------------------------------------------------------

HISTORY: tuple[Json, ...] = (
    {"type": "message", "role": "user", "content": "Hi."},
    {"type": "message", "role": "assistant", "content": "Hello."},
    {"type": "message", "role": "user", "content": "Look twice."},
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "localSearch",
        "arguments": '{"query":  "a"}',
    },
    {"type": "function_call", "call_id": "call_2", "name": "exec_command", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "nothing"},
    {"type": "function_call_output", "call_id": "call_2", "output": 'a "quoted" ] word'},
)


async def test_the_history_reaches_the_model_in_order(
    version: str, backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    turn = said("And TEXT ?", *HISTORY, tools=(SEARCH, EXEC), base_instructions="You are Ada.")
    assert message(await ask(backend, turn))["content"] == "Hello, wörld 🌍!"
    items = without_ids(model.requests[-1]["input"])
    if version == OLD:
        assert words(items[-1]).splitlines() == [
            '[message role="user" text="Hi."]',
            '[message role="assistant" text="Hello."]',
            '[message role="user" text="Look twice."]',
            r'[function_call id="call_1" name="localSearch" arguments="{\"query\":  \"a\"}"]',
            '[function_call id="call_2" name="exec_command" arguments="{}"]',
            '[function_call_output call_id="call_1" output="nothing"]',
            r'[function_call_output call_id="call_2" output="a \"quoted\" ] word"]',
            "",
            "And TEXT ?",
        ]
        return
    instructions, *conversation = items
    assert (instructions["role"], words(instructions)) == ("developer", "You are Ada.")
    answered = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    assert conversation == [
        from_user("Hi."),
        {"type": "message", **answered},
        from_user("Look twice."),
        HISTORY[3],
        {**HISTORY[4], "name": "client_exec_command"},
        *HISTORY[5:],
        from_user("And TEXT ?"),
    ]


async def test_the_outputs_of_the_calls_are_answered_without_another_word(
    version: str, backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    answer = await ask(backend, evolve(said(""), items=HISTORY, tools=(SEARCH, EXEC)))
    assert not calls(answer)  # the history's own calls are no calls of the answer
    if version == OLD:
        last = words(model.requests[-1]["input"][-1]).splitlines()[-1]
        assert last == r'[function_call_output call_id="call_2" output="a \"quoted\" ] word"]'
    else:
        assert message(answer)["content"] == 'The tool said: a "quoted" ] word'


async def test_instructions_schema_effort_and_model_reach_the_model(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    turn = said(
        "TEXT",
        model="gpt-5.1",
        instructions="Be brief.",
        output_schema=OutputSchema(schema),
        effort="high",
        summary="detailed",
    )
    await ask(backend, turn)
    request = model.requests[-1]
    developer = [words(item) for item in request["input"] if item.get("role") == "developer"]
    assert developer.count("Be brief.") == 1
    form = request["text"]["format"]
    assert (form["type"], form["strict"], form["schema"]) == ("json_schema", True, schema)
    assert request["reasoning"] == {"effort": "high", "summary": "detailed"}
    assert request["model"] == "gpt-5.1"


async def test_a_picture_reaches_the_model_as_a_picture(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel, picture: str
) -> None:
    image = {"type": "input_image", "image_url": picture}
    await ask(backend, said([{"type": "input_text", "text": "What is TEXT here?"}, image]))
    content = model.requests[-1]["input"][-1]["content"]
    assert content[0] == {"type": "input_text", "text": "What is TEXT here?"}
    (seen,) = (part for part in content if part["type"] == "input_image")
    assert seen["image_url"] == picture


# -- failures --------------------------------------------------------------------------------------

FAILURES = {
    "E401": (401, "invalid_request_error", "invalid_api_key", "codex login"),
    "E429": (429, "insufficient_quota", "insufficient_quota", "hit your usage limit"),
    "E500": (500, "server_error", "server_error", "experiencing high demand"),
    "E400": (400, "invalid_request_error", "invalid_request_error", "the request is wrong"),
    "CUT": (502, "server_error", "upstream_error", "stream disconnected before completion"),
}


async def failure_of(ask: Ask, backend: Pool, turn: Turn) -> Failure:
    with pytest.raises(ProxyError) as caught:
        await ask(backend, turn)
    return caught.value.failure


async def test_every_failure_of_the_upstream_has_its_status_and_is_reported_once(
    backend: Pool, ask: Ask, watch: Watch, said: Said
) -> None:
    for keyword, (status, kind, code, hint) in FAILURES.items():
        failure = await failure_of(ask, backend, said(keyword))
        assert (failure.status, failure.type, failure.code) == (status, kind, code), keyword
        assert hint in failure.message, keyword
        events = await watch(backend, said(keyword))
        ends = [type(event) for event in events if isinstance(event, Failed | TurnEnd)]
        assert ends == [Failed, TurnEnd], keyword
    assert message(await ask(backend, said("TEXT")))["finish_reason"] == "stop"


async def test_an_answer_over_the_token_limit_ends_with_length_where_codex_tells(
    version: str, backend: Pool, ask: Ask, said: Said
) -> None:
    if version == OLD:  # it takes an incomplete response for a lost connection
        failure = await failure_of(ask, backend, said("HALF"))
        assert (failure.status, failure.code) == (502, "upstream_error")
        return
    answer = await ask(backend, said("HALF"))
    assert message(answer)["content"] == "Half"
    assert message(answer)["finish_reason"] == "length"
