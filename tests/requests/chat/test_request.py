"""Chat Completions requests as Turns: their parameters, and the words for a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.assembly import Settings
from pipeline.requests.chat import ChatRequest
from pipeline.requests.shared.answer_form import AS_JSON
from pipeline.turn import NamedTool, OutputSchema, Tool, Turn

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
READ = {"type": "function", "function": {"name": "read"}}
TOOLS = (Tool("search", {"type": "object"}), Tool("read"))
HELLO = {"role": "user", "content": "Hello."}
SCHEMA = {
    "$defs": {"A": {"type": "string"}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "required": ["a"],
    "additionalProperties": False,
}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.from_json({"model": "gpt-5", "messages": [HELLO], **fields})


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


READ_AS: list[tuple[dict[str, Any], Turn]] = [
    ({}, Turn()),
    ({"model": "gpt-5"}, Turn(model="gpt-5")),
    ({"tools": None, "stream": None, "n": None, "stop": None, "messages": []}, Turn()),
    ({"stream": True}, Turn(stream=True)),
    ({"tools": [SEARCH, READ]}, Turn(tools=TOOLS)),
    ({"tools": []}, Turn()),
    ({"tools": [{"type": "web_search"}]}, Turn()),
    ({"parallel_tool_calls": False}, Turn(parallel_tool_calls=False)),
    ({"stream_options": {"include_usage": True}}, Turn(include_usage=True)),
    ({"stream_options": {"include_usage": None}}, Turn()),
    ({"temperature": 1, "unknown": [1]}, Turn()),
    ({"verbosity": "low"}, Turn(verbosity="low")),
    ({"verbosity": None, "prompt_cache_key": None}, Turn()),
    ({"prompt_cache_key": "k"}, Turn(prompt_cache_key="k")),
    # a tool
    (
        {"tools": [{"function": {"name": "a", "description": None, "parameters": None}}]},
        Turn(tools=(Tool("a"),)),
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "strict": None}}]},
        Turn(tools=(Tool("a"),)),
    ),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "a.b",
                        "description": "Does.",
                        "strict": True,
                        "parameters": {"$schema": "x", "properties": {"p": {}}},
                    },
                }
            ]
        },
        Turn(tools=(Tool("a.b", {"$schema": "x", "properties": {"p": {}}}, "Does.", True),)),
    ),
    # the choice
    ({"tools": [SEARCH, READ], "tool_choice": "auto"}, Turn(tools=TOOLS)),
    ({"tool_choice": "none"}, Turn(tool_choice="none")),
    (
        {"tools": [SEARCH, READ], "tool_choice": "none"},
        Turn(tools=TOOLS, tool_choice="none"),
    ),
    (
        {"tools": [SEARCH, READ], "tool_choice": "required"},
        Turn(tools=TOOLS, tool_choice="required"),
    ),
    (
        {"tools": [SEARCH, READ], "tool_choice": named("read")},
        Turn(tools=TOOLS, tool_choice=NamedTool("read")),
    ),
    (
        {"tools": [SEARCH, READ], "tool_choice": allowed("required", named("read"))},
        Turn(tools=(Tool("read"),), tool_choice="required"),
    ),
    (
        {
            "tools": [SEARCH, READ, {"type": "web_search"}],
            "tool_choice": allowed("auto", named("search"), {"type": "web_search"}),
        },
        Turn(tools=TOOLS[:1]),
    ),
    # functions
    ({"functions": [{"name": "f"}]}, Turn(tools=(Tool("f"),), legacy_functions=True)),
    (
        {"functions": [{"name": "f"}], "function_call": "none"},
        Turn(tools=(Tool("f"),), tool_choice="none", legacy_functions=True),
    ),
    (
        {"functions": [{"name": "f"}, {"name": "g"}], "function_call": {"name": "g"}},
        Turn(tools=(Tool("f"), Tool("g")), tool_choice=NamedTool("g"), legacy_functions=True),
    ),
    ({"functions": [{"name": "f"}], "tools": [READ]}, Turn(tools=(Tool("read"),))),
    # the form of the answer
    ({"response_format": {"type": "text"}}, Turn()),
    ({"response_format": {"type": "json_object"}}, Turn(instructions=AS_JSON)),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "A", "schema": SCHEMA, "strict": True},
            }
        },
        Turn(output_schema=OutputSchema(SCHEMA, "A", strict=True)),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {}, "description": "An A.", "strict": False},
            }
        },
        Turn(output_schema=OutputSchema({}, description="An A.", strict=False)),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {}, "name": None, "description": None, "strict": None},
            }
        },
        Turn(output_schema=OutputSchema({})),
    ),
    # thinking
    ({"reasoning_effort": "none"}, Turn(effort="none")),
    ({"reasoning_effort": "xhigh"}, Turn(effort="xhigh", summary="auto")),
    ({"reasoning": {"effort": "low"}}, Turn(effort="low", summary="auto")),
    ({"reasoning": {"summary": "detailed"}}, Turn(summary="detailed")),
    ({"reasoning": {"effort": "low", "summary": "none"}}, Turn(effort="low", summary="none")),
    (
        {"reasoning_effort": "high", "reasoning": {"effort": "low"}},
        Turn(effort="high", summary="auto"),
    ),
    # the end of the text
    ({"stop": "\n"}, Turn(stop=("\n",))),
    ({"stop": []}, Turn()),
    ({"stop": ["a", "b", "c", "d" * 1000]}, Turn(stop=("a", "b", "c", "d" * 1000))),
]


@pytest.mark.parametrize(("body", "turn"), READ_AS)
def test_a_request_is_read_as_a_turn(body: object, turn: Turn) -> None:
    assert ChatRequest.from_json(body, partial=True).turn() == turn


def test_a_request_for_json_keeps_its_own_instructions() -> None:
    system = {"role": "system", "content": "Be brief."}
    turn = request(messages=[system, HELLO], response_format={"type": "json_object"}).turn()
    assert turn.instructions == f"Be brief.\n\n{AS_JSON}"


@pytest.mark.parametrize("n", [1, 8])
def test_one_to_eight_choices_can_be_had(n: int) -> None:
    assert request(n=n).n == n


def test_one_choice_is_had_where_nothing_else_is_said() -> None:
    assert (request().n, request(n=None).n) == (1, 1)


# -- the operator's word ---------------------------------------------------------------------------


def test_the_operators_base_instructions_and_mode_go_along() -> None:
    turn = request().turn(Settings(base_instructions="You are Ada."), output_mode="obsidian-xml")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert turn.base_instructions == "You are Ada."
    assert turn.output_mode == "obsidian-xml"
    assert request().turn().base_instructions is None


@pytest.mark.parametrize(
    ("setting", "wish", "parallel"),
    [
        ("request", None, True),
        ("request", False, False),
        ("request", True, True),
        ("true", False, True),
        ("false", True, False),
    ],
)
def test_the_operator_decides_over_parallel_calls(
    setting: Any, wish: bool | None, parallel: bool
) -> None:
    turn = request(parallel_tool_calls=wish).turn(Settings(parallel_tool_calls=setting))
    assert turn.parallel_tool_calls is parallel


# -- tools -----------------------------------------------------------------------------------------


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
def test_a_tool_knows_the_types_of_its_parameters(schema: object, types: set[str]) -> None:
    tool = Tool("t", {"properties": {"p": schema}})
    assert tool.parameter_types("p") == types
    assert tool.parameter_types("other") == set()
