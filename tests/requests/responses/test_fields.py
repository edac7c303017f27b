"""What a Responses request asks for, what it asks in vain, and what its response repeats."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from pipeline.assembly import Settings, responses_options
from pipeline.errors import ProxyError
from pipeline.loose_json import Json
from pipeline.requests.responses import CompactRequest, ResponsesRequest
from pipeline.requests.responses.references import sealed_in, with_opened
from pipeline.requests.shared.answer_form import AS_JSON
from pipeline.requests.shared.ignored import refuse
from pipeline.turn import OutputSchema, Turn

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}


def request(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.from_json({"model": "gpt-5", "input": "Hello.", **fields})


ASKED: list[tuple[dict[str, Any], str, object]] = [
    ({"instructions": "Be brief."}, "instructions", "Be brief."),
    ({"instructions": None}, "instructions", ""),
    ({"text": {}}, "output_schema", None),
    ({"text": {"format": {"type": "text"}}}, "output_schema", None),
    ({"text": {"format": FORM}}, "output_schema", OutputSchema(SCHEMA, "answer", strict=True)),
    (
        {"text": {"format": {"type": "json_schema", "schema": {}, "description": "A word."}}},
        "output_schema",
        OutputSchema({}, description="A word."),
    ),
    (
        {"text": {"format": {**FORM, "schema": {}, "strict": None, "name": None}}},
        "output_schema",
        OutputSchema({}),
    ),
    ({"text": {"format": {"type": "json_object"}}}, "instructions", AS_JSON),
    ({"text": {"verbosity": "low"}}, "verbosity", "low"),
    ({"prompt_cache_key": "k"}, "prompt_cache_key", "k"),
    ({}, "prompt_cache_key", None),
    ({"text": {"format": None, "verbosity": None}}, "verbosity", None),
    ({"reasoning": {"effort": "high"}}, "effort", "high"),
    ({"reasoning": {"effort": None, "summary": None}}, "effort", None),
    ({"reasoning": {"effort": "high"}}, "summary", None),
    ({"reasoning": {"summary": "detailed"}}, "summary", "detailed"),
    ({"reasoning": {"generate_summary": "concise"}}, "summary", "concise"),
    ({"max_tool_calls": 3}, "max_tool_calls", 3),
    ({"max_tool_calls": None}, "max_tool_calls", None),
    ({"stream": True}, "stream", True),
    ({"stream": None}, "stream", None),
]


@pytest.mark.parametrize(("fields", "name", "expected"), ASKED)
def test_a_field_reaches_the_turn(fields: dict[str, Any], name: str, expected: object) -> None:
    assert getattr(request(**fields).turn(), name) == expected


def test_the_mode_and_the_operators_base_instructions_reach_the_turn() -> None:
    asked = request().turn(
        Settings.from_env({"PROXY_BASE_INSTRUCTIONS": "Base."}), output_mode="obsidian-xml"
    )
    assert (asked.base_instructions, asked.output_mode) == ("Base.", "obsidian-xml")


def test_a_response_is_stored_unless_the_request_says_no() -> None:
    assert request().store
    assert request(store=None).store
    assert not request(store=False).store
    assert not request().background


def test_sealed_reasoning_is_for_those_who_ask_for_it() -> None:
    assert request(include=["reasoning.encrypted_content"]).wants_sealed_reasoning
    assert not request(include=[]).wants_sealed_reasoning


# -- what has no effect ----------------------------------------------------------------------------

HONOURED: list[dict[str, Any]] = [
    {"store": False, "stream": True, "tool_choice": "auto", "parallel_tool_calls": True},
    {"include": ["reasoning.encrypted_content"], "prompt_cache_key": "a"},
    {"client_metadata": {"a": "b"}, "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s"},
    {"reasoning": {"effort": "low", "summary": "auto", "context": "all_turns"}},
    {"text": {"verbosity": "low", "format": FORM}},
    {"text": {"format": {**FORM, "strict": False, "description": "A word."}}},
    {"service_tier": "auto", "truncation": "disabled", "top_logprobs": 0, "background": False},
    {"stream_options": {"include_obfuscation": False}, "temperature": None},
    {"previous_response_id": "resp_1", "max_tool_calls": 1, "instructions": "Be brief."},
]


@pytest.mark.parametrize("fields", HONOURED)
def test_nothing_is_said_of_what_is_honoured(fields: dict[str, Any]) -> None:
    asked = request(**fields)
    assert asked.ignored == ()
    refuse(asked.ignored)


IGNORED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"temperature": 0.5, "top_p": 1}, ("temperature", "top_p")),
    ({"max_output_tokens": 9, "top_logprobs": 2}, ("max_output_tokens", "top_logprobs")),
    ({"truncation": "auto"}, ("truncation",)),
    ({"service_tier": "priority"}, ("service_tier",)),
    ({"seed": 1, "context_management": []}, ("seed", "context_management")),
    ({"include": ["web_search_call.results"]}, ("include.web_search_call.results",)),
    ({"include": ["no, such\nthing"]}, ("include.no??such?thing",)),
    ({"tools": [{"type": "web_search"}, {"type": "mcp"}]}, ("tools[0].web_search", "tools[1].mcp")),
    (
        {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "mcp"}]}]},
        ("tools[0].tools[0].mcp",),
    ),
    (
        {"input": [{"type": "additional_tools", "tools": [{"type": "tool_search"}]}]},
        ("input[0].tools[0].tool_search",),
    ),
    ({"input": [{"type": "web_search_call", "id": "ws"}]}, ("input[0].web_search_call",)),
    (
        {"input": [{"type": "configuration_update", "text": {"format": FORM}}]},
        ("input[0].text",),
    ),
    ({"tool_choice": {"type": "file_search"}}, ("tool_choice",)),
    (
        {"text": {"format": {**FORM, "strict": False, "mood": "x"}, "tone": "x"}},
        ("text.tone", "text.format.mood"),
    ),
    ({"reasoning": {"mood": "calm"}}, ("reasoning.mood",)),
    ({"stream_options": {"include_obfuscation": True}}, ("stream_options.include_obfuscation",)),
]


@pytest.mark.parametrize(("fields", "names"), IGNORED)
def test_what_has_no_effect_is_named(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    asked = request(**fields)
    assert asked.ignored == names
    with pytest.raises(ProxyError, match="has no effect") as caught:
        refuse(asked.ignored)
    assert (caught.value.failure.status, caught.value.failure.param) == (400, names[0])


STRICT: Json = {"type": "function", "name": "s", "strict": True}
LOOSE: Json = {**STRICT, "name": "l", "strict": False}


def test_tools_that_ask_to_be_strict_are_found() -> None:
    group = {"type": "namespace", "name": "n", "tools": [LOOSE, {"type": "mcp"}, STRICT]}
    more = {"type": "additional_tools", "tools": [group, STRICT]}
    asked = request(tools=[LOOSE, STRICT, {"type": "custom", "name": "c"}], input=[more])
    assert asked.strict_tools == (
        "tools[1].strict",
        "input[0].tools[0].tools[2].strict",
        "input[0].tools[1].strict",
    )
    assert asked.ignored == ("input[0].tools[0].tools[1].mcp",)


# -- what the response repeats ---------------------------------------------------------------------

ALWAYS = [
    "background",
    "frequency_penalty",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
]


def repeated(**fields: Any) -> dict[str, Any]:
    """What the response object repeats of a request."""
    return dict(responses_options(Settings(), Turn(), request(**fields).echo()).echo)


def test_a_response_to_a_plain_request_says_what_openai_would() -> None:
    told = repeated()
    assert sorted(told) == ALWAYS
    assert told["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert told["reasoning"] == {"effort": None, "summary": None}
    assert (told["temperature"], told["top_p"], told["truncation"]) == (1.0, 1.0, "disabled")
    assert (told["tools"], told["tool_choice"], told["metadata"]) == ([], "auto", {})
    assert (told["store"], told["background"], told["parallel_tool_calls"]) == (True, False, True)


def test_a_response_repeats_its_request() -> None:
    tools: list[Json] = [
        {"type": "function", "name": "search"},
        {"type": "web_search"},
        {"type": "custom", "name": "exec"},
    ]
    given: dict[str, Any] = {
        "instructions": "Be brief.",
        "tool_choice": {"type": "custom", "name": "exec"},
        "metadata": {"a": "b"},
        "store": False,
        "temperature": 0.5,
        "previous_response_id": "resp_1",
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "user": "u",
    }
    more = {"text": {"format": FORM}, "reasoning": {"effort": "low"}}
    told = repeated(**given, tools=tools, **more)
    assert {name: told[name] for name in given} == given
    whole_form = {"description": None, "strict": None, **FORM}
    assert told["text"] == {"format": whole_form, "verbosity": "medium"}
    assert told["reasoning"] == {"effort": "low", "summary": None}
    filled = {"type": "function", "name": "search", "description": None, "parameters": None}
    assert told["tools"] == [{**filled, "strict": None}, *tools[1:]]


def test_the_sdk_reads_what_is_repeated() -> None:
    told = repeated(tools=[{"type": "function", "name": "search"}], text={"format": FORM})
    rest: Json = {"id": "resp_1", "object": "response", "created_at": 1, "output": []}
    Response.model_validate({**told, **rest})


def test_stored_items_have_ids_and_words_in_parts() -> None:
    items = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi.", "id": "msg_own"},
        {"type": "function_call", "id": None, "call_id": "c", "name": "a", "arguments": "{}"},
    ]
    first, second, third = request(input=items).input_items()
    assert first["content"] == [{"type": "input_text", "text": "Hello."}]
    assert first["id"].startswith("msg_")
    assert second["id"] == "msg_own"
    assert second["content"] == [{"type": "output_text", "text": "Hi.", "annotations": []}]
    assert third["id"].startswith("fc_")


# -- shortening ------------------------------------------------------------------------------------


def test_a_request_to_compact_has_the_same_fields() -> None:
    asked = CompactRequest.from_json(
        {"model": "gpt-5", "input": "Hello.", "instructions": "Be brief."}
    )
    assert asked.wants_compaction
    assert isinstance(asked.turn(), Turn)
    assert asked.turn().instructions == "Be brief."
    after = CompactRequest.from_json({"model": "gpt-5", "previous_response_id": "resp_1"})
    assert after.previous_response_id == "resp_1"


def test_stored_compactions_are_found_and_replaced() -> None:
    one: Json = {"type": "compaction", "encrypted_content": "a"}
    other: Json = {"type": "compaction_summary", "encrypted_content": "b"}
    hello: Json = {"role": "user", "content": "Hello."}
    assert sealed_in([hello, one, other]) == ("a", "b")
    assert list(with_opened([one, hello, other], {"a": [hello]})) == [hello, hello, other]
