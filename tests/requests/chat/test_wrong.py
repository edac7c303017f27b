"""What is wrong with a Chat Completions request: the field, and the words for it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ProxyError
from pipeline.requests.chat import ChatRequest

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
READ = {"type": "function", "function": {"name": "read"}}
HELLO = {"role": "user", "content": "Hello."}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


FUNCTION = {"type": "function"}
WRONG: list[tuple[object, str | None, str]] = [
    ([], None, "the request body must be an object, not an array"),
    (None, None, "the request body must be an object, not null"),
    ("{}", None, "the request body must be an object, not a string"),
    ({"model": 5}, "model", "model must be a string, not a whole number"),
    ({"model": None}, "model", "model must be a string, not null"),
    ({"model": ""}, "model", "model is empty; it must be the name of a model"),
    ({"messages": None}, "messages", "messages must be an array, not null"),
    ({"messages": {}}, "messages", "messages must be an array, not an object"),
    ({"messages": ["Hello."]}, "messages[0]", "messages[0] must be an object, not a string"),
    ({"stream": "yes"}, "stream", "stream must be true or false, not a string"),
    ({"stream": 1}, "stream", "stream must be true or false, not a whole number"),
    ({"stream_options": 1}, "stream_options", "must be an object"),
    (
        {"stream_options": {"include_usage": "yes"}},
        "stream_options.include_usage",
        "must be true or false, not a string",
    ),
    ({"n": 0}, "n", "n must be from 1 to 8"),
    ({"verbosity": "loud"}, "verbosity", 'not "loud"'),
    ({"prompt_cache_key": 7}, "prompt_cache_key", "prompt_cache_key must be a string"),
    ({"n": 9}, "n", "n must be from 1 to 8"),
    ({"n": 10**5000}, "n", "n must be from 1 to 8"),
    ({"n": 1.0}, "n", "n must be a whole number, not a number"),
    ({"n": True}, "n", "n must be a whole number, not true or false"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "must be true or false, not a string"),
    # stop
    ({"stop": 5}, "stop", "must be a string or an array of up to 4 strings, not a whole number"),
    ({"stop": ["a", 5]}, "stop[1]", "stop[1] must be a string, not a whole number"),
    ({"stop": list("abcde")}, "stop", "stop must have at most 4 sequences, not 5"),
    ({"stop": ""}, "stop", "must have sequences of 1 to 1000 characters"),
    ({"stop": ["a", ""]}, "stop", "must have sequences of 1 to 1000 characters"),
    ({"stop": "a" * 1001}, "stop", "must have sequences of 1 to 1000 characters"),
    # tools
    ({"tools": {}}, "tools", "tools must be an array, not an object"),
    ({"tools": [None]}, "tools[0]", "tools[0] must be an object, not null"),
    ({"tools": [{"type": 5}]}, "tools[0].type", "tools[0].type must be a string"),
    ({"tools": [FUNCTION]}, "tools[0].function", "is missing; it must be an object with a name"),
    (
        {"tools": [FUNCTION | {"name": "flat"}]},
        "tools[0].function",
        "is missing; it must be an object with a name",
    ),
    ({"tools": [{"function": 1}]}, "tools[0].function", "must be an object, not a whole number"),
    (
        {"tools": [SEARCH, {"function": {"name": 1.5}}]},
        "tools[1].function.name",
        "tools[1].function.name must be a string, not a number",
    ),
    ({"tools": [{"function": {}}]}, "tools[0].function.name", "is missing"),
    ({"tools": [named("")]}, "tools[0].function.name", "must have from 1 to 128 characters"),
    ({"tools": [named("a" * 129)]}, "tools[0].function.name", "from 1 to 128 characters"),
    (
        {"tools": [{"function": {"name": "a", "parameters": []}}]},
        "tools[0].function.parameters",
        "must be an object, not an array",
    ),
    (
        {"tools": [{"function": {"name": "a", "description": 5}}]},
        "tools[0].function.description",
        "must be a string, not a whole number",
    ),
    (
        {"tools": [{"function": {"name": "a", "strict": "yes"}}]},
        "tools[0].function.strict",
        "must be true or false, not a string",
    ),
    (
        {"tools": [{"type": "web_search"}, SEARCH, SEARCH]},
        "tools[2].function.name",
        "is 'search', which another tool has; names must differ",
    ),
    # the choice
    ({"tool_choice": 5}, "tool_choice", "must be"),
    (
        {"tool_choice": "any"},
        "tool_choice",
        'tool_choice must be one of "none", "auto", "required", not "any"',
    ),
    ({"tool_choice": {}}, "tool_choice.type", "is missing"),
    (
        {"tool_choice": {"type": "hosted"}},
        "tool_choice.type",
        'must be one of "function", "allowed_tools", not "hosted"',
    ),
    ({"tool_choice": FUNCTION}, "tool_choice.function", "is missing"),
    (
        {"tools": [SEARCH, READ], "tool_choice": named("write")},
        "tool_choice.function.name",
        "is 'write', which is not declared; the tools are: search, read",
    ),
    ({"tool_choice": "required"}, "tool_choice", "there is no function to call; send tools"),
    (
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        "tool_choice",
        "there is no function to call; send tools",
    ),
    (
        {"tools": [READ], "tool_choice": allowed("auto", named("search"))},
        "tool_choice.allowed_tools.tools",
        "is 'search', which is not declared; the tools are: read",
    ),
    (
        {"tools": [READ], "tool_choice": allowed("none", named("read"))},
        "tool_choice.allowed_tools.mode",
        'must be one of "auto", "required", not "none"',
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [5]}}},
        "tool_choice.allowed_tools.tools[0]",
        "must be an object, not a whole number",
    ),
    # functions
    ({"functions": {}}, "functions", "must be an array, not an object"),
    ({"functions": [{}]}, "functions[0].name", "is missing"),
    (
        {"functions": [{"name": "f"}, {"name": "f"}]},
        "functions[1].name",
        "is 'f', which another tool has; names must differ",
    ),
    ({"function_call": 5}, "function_call", 'must be "none", "auto" or an object with a name'),
    ({"function_call": "f"}, "function_call", 'must be one of "none", "auto", not "f"'),
    ({"function_call": {}}, "function_call.name", "is missing"),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        "function_call.name",
        "is 'g', which is not declared; the tools are: f",
    ),
    # the form of the answer
    ({"response_format": "json"}, "response_format", "must be an object, not a string"),
    ({"response_format": {}}, "response_format.type", "is missing"),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        'must be one of "text", "json_object", "json_schema", not "xml"',
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "A"}}},
        "response_format.json_schema.schema",
        "is missing",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "A", "schema": []}}},
        "response_format.json_schema.schema",
        "must be an object, not an array",
    ),
    # thinking
    (
        {"reasoning_effort": "huge"},
        "reasoning_effort",
        'must be one of "none", "minimal", "low", "medium", "high", "xhigh", "max", not "huge"',
    ),
    ({"reasoning_effort": 5}, "reasoning_effort", "not a whole number"),
    ({"reasoning": "high"}, "reasoning", "must be an object, not a string"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", 'not "huge"'),
    (
        {"reasoning": {"summary": "long"}},
        "reasoning.summary",
        'must be one of "auto", "concise", "detailed", "none", not "long"',
    ),
]


@pytest.mark.parametrize(("body", "param", "says"), WRONG)
def test_a_wrong_field_is_named(body: object, param: str | None, says: str) -> None:
    with pytest.raises(ProxyError) as raised:
        ChatRequest.from_json(body, partial=True).turn()
    failure = raised.value.failure
    assert (failure.status, failure.type, failure.param) == (400, "invalid_request_error", param)
    assert says in failure.message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "model", "model is missing"),
        ({"messages": [HELLO]}, "model", "model is missing"),
        ({"model": "gpt-5"}, "messages", "messages is missing"),
        ({"model": "gpt-5", "messages": []}, "messages", "messages is empty"),
    ],
)
def test_only_a_replay_can_do_without_model_and_messages(
    body: object, param: str, says: str
) -> None:
    with pytest.raises(ProxyError) as raised:
        ChatRequest.from_json(body)
    assert raised.value.failure.param == param
    assert says in raised.value.failure.message
    ChatRequest.from_json(body, partial=True).turn()
