"""Chat Completions requests as Turns."""

from __future__ import annotations

import pytest

from pipeline.errors import ProxyError
from pipeline.requests.chat import ChatRequest
from pipeline.turn import Tool, Turn

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("body", "turn"),
    [
        ({}, Turn()),
        ({"model": "gpt-5"}, Turn(model="gpt-5")),
        ({"tools": None, "stream": None, "parallel_tool_calls": None}, Turn()),
        ({"tools": [SEARCH]}, Turn(tools=(Tool("search", {"type": "object"}),))),
        (
            {"tools": [SEARCH], "tool_choice": "none"},
            Turn(tools=(Tool("search", {"type": "object"}),), tool_choice="none"),
        ),
        ({"tools": [{"type": "web_search"}]}, Turn()),
        ({"functions": [{"name": "f"}]}, Turn(tools=(Tool("f"),), legacy_functions=True)),
        (
            {"functions": [{"name": "f"}], "function_call": "none"},
            Turn(tools=(Tool("f"),), tool_choice="none", legacy_functions=True),
        ),
        ({"parallel_tool_calls": False}, Turn(parallel_tool_calls=False)),
        ({"stream_options": {"include_usage": True}}, Turn(include_usage=True)),
        ({"temperature": 1, "unknown": [1]}, Turn()),
        (
            {"tools": [{"function": {"name": "a", "description": None, "parameters": None}}]},
            Turn(tools=(Tool("a"),)),
        ),
    ],
)
def test_a_request_is_read_as_a_turn(body: object, turn: Turn) -> None:
    assert ChatRequest.from_json(body, partial=True).turn() == turn


WRONG: list[tuple[object, str | None, str]] = [
    ([], None, "the request body must be an object, not an array"),
    (None, None, "the request body must be an object, not null"),
    ({"model": 5}, "model", "model must be a string, not a whole number"),
    ({"model": None}, "model", "model must be a string, not null"),
    ({"stream": "yes"}, "stream", "stream must be true or false, not a string"),
    ({"tools": {}}, "tools", "tools must be an array, not an object"),
    ({"tools": [None]}, "tools[0]", "tools[0] must be an object, not null"),
    (
        {"tools": [SEARCH, {"function": {"name": 1.5}}]},
        "tools[1].function.name",
        "tools[1].function.name must be a string, not a number",
    ),
    ({"tools": [{"function": {}}]}, "tools[0].function.name", "is missing"),
    (
        {"tools": [{"function": {"name": "a", "parameters": []}}]},
        "tools[0].function.parameters",
        "must be an object, not an array",
    ),
    ({"stream_options": 1}, "stream_options", "must be an object"),
]


@pytest.mark.parametrize(("body", "param", "says"), WRONG)
def test_a_wrong_field_is_named(body: object, param: str | None, says: str) -> None:
    with pytest.raises(ProxyError) as raised:
        ChatRequest.from_json(body, partial=True)
    failure = raised.value.failure
    assert (failure.status, failure.type, failure.param) == (400, "invalid_request_error", param)
    assert says in failure.message


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, {"array", "string"}),
        ({"oneOf": [{"type": "number"}]}, {"number"}),
        ({}, set[str]()),
        ("wrong", set[str]()),
    ],
)
def test_a_tool_tells_the_types_of_its_parameters(schema: object, types: set[str]) -> None:
    tool = Tool("t", {"properties": {"p": schema}})
    assert tool.parameter_types("p") == types
    assert tool.parameter_types("other") == set()
