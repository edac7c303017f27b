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


# -- lines that ask for something ------------------------------------------------------------------

OFFERED = [
    {"type": "function", "name": "readNote"},
    {"type": "function", "name": "client_exec_command"},
    {"type": "namespace", "name": "files", "tools": [{"type": "custom", "name": "apply_patch"}]},
]
CALLED = {"type": "function_call", "call_id": "call_1", "name": "readNote", "arguments": "{}"}


def conversation(words: str, *earlier: dict[str, Any]) -> dict[str, Any]:
    user = {"type": "message", "role": "user", "content": words}
    return {"input": [*earlier, user], "tools": OFFERED}


def test_each_line_calls_a_tool_under_the_name_that_it_is_offered_by() -> None:
    lines = 'Please\nCALL exec_command {"cmd": "ls TEXTS"}\nCALL readNote {}\nCALL apply_patch {}'
    assert [
        (item["call_id"], item["name"], item["arguments"])
        for item in answer(conversation(lines, CALLED)).items
    ] == [
        ("call_2", "client_exec_command", '{"cmd": "ls TEXTS"}'),
        ("call_3", "readNote", "{}"),
        ("call_4", "apply_patch", "{}"),
    ]


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    (item,) = answer(conversation("CALL exec {}")).items
    names = "readNote, client_exec_command, apply_patch"
    assert item["text"] == f"There is no tool exec, but {names}."


def test_a_word_is_recalled_with_who_said_it() -> None:
    earlier: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "plum\npear"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a plum tree"}]},
    ]
    (item,) = answer(conversation("RECALL plum", *earlier)).items
    assert item["text"] == "developer: plum\nassistant: a plum tree"
    (item,) = answer(conversation("RECALL fig", *earlier)).items
    assert item["text"] == "Nobody said fig."


def test_pictures_are_seen_as_what_they_are() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBO"}
    (item,) = answer(conversation("LOOK", {"role": "user", "content": [picture, picture]})).items
    assert item["text"] == "I see data:image/png, data:image/png."
    (item,) = answer(conversation("LOOK")).items
    assert item["text"] == "I see nothing."
