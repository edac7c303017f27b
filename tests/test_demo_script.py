from __future__ import annotations

import json
from typing import Any

import pytest

from sources.demo.sample import sample
from sources.demo.script import answer

NAME = {"type": "string"}
EVENT = {"type": "object", "properties": {"name": NAME, "day": {"type": "string"}}}
SCHEMAS: list[tuple[dict[str, Any], object]] = [
    ({"type": "string"}, "some value"),
    ({"type": "string", "format": "date"}, "2026-05-17"),
    ({"type": "string", "format": "unheard-of"}, "some value"),
    ({"type": "integer"}, 7),
    ({"type": "integer", "minimum": 100}, 100),
    ({"type": "integer", "exclusiveMinimum": 100}, 101),
    ({"type": "integer", "maximum": 3}, 3),
    ({"type": "integer", "exclusiveMaximum": 3}, 2),
    ({"type": "integer", "minimum": "many"}, 7),
    ({"type": "number"}, 7.5),
    ({"type": "boolean"}, True),
    ({"type": "null"}, None),
    ({"type": ["integer", "null"]}, 7),
    ({"const": "fixed"}, "fixed"),
    ({"enum": ["red", "blue"]}, "red"),
    ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
    ({"type": "array", "items": {"type": "integer"}}, [7]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [7, 7]),
    (EVENT, {"name": "some name", "day": "some day"}),
    ({"properties": {"name": NAME}}, {"name": "some name"}),
    ({"$ref": "#/$defs/Event", "$defs": {"Event": {"const": 1}}}, 1),
    ({"$ref": "#/$defs/Nowhere"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("schema", "value"), SCHEMAS)
def test_a_schema_is_filled_with_something_it_allows(schema: Any, value: object) -> None:
    filled = sample(schema)
    assert filled == value
    assert type(filled) is type(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefgh"}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 9},
        {"type": "array", "items": NAME, "minItems": 10**9},
    ],
)
def test_a_schema_without_an_end_is_followed_only_so_far(schema: Any) -> None:
    assert len(json.dumps(sample(schema))) < 20_000


def asked(words: str, *more: dict[str, Any], schema: Any = EVENT) -> dict[str, Any]:
    user = {"type": "message", "role": "user", "content": words}
    form = {"type": "json_schema", "name": "event", "schema": schema}
    tools = [{"type": "function", "name": "readNote", "parameters": {"required": ["path"]}}]
    return {"input": [user, *more], "text": {"format": form}, "tools": tools}


OUTPUT = {"type": "function_call_output", "call_id": "call_demo", "output": "12 °C"}
FILLED = '{"name":"some name","day":"some day"}'


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (asked("When is it?"), FILLED),
        (asked("Use readNote first", OUTPUT), FILLED),
        (asked("TEXT"), "Hello, wörld 🌍!"),
        ({**asked("When is it?"), "text": {}}, "You said: When is it?"),
        ({**asked("When is it?"), "text": {"format": {"type": "text"}}}, "You said: When is it?"),
        ({**asked("Hi", OUTPUT), "text": None}, "The tool said: 12 °C"),
    ],
)
def test_a_form_is_filled_in_unless_a_keyword_asks_for_something_else(
    request_: dict[str, Any], said: str
) -> None:
    assert [item.get("text") for item in answer(request_).items] == [said]


def test_a_tool_is_called_before_the_form_is_filled_in() -> None:
    (item,) = answer(asked("Use readNote first")).items
    assert (item["type"], item["name"]) == ("function_call", "readNote")
