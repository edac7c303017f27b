"""Parameters of a Chat Completions request that have no effect, and how a client learns of them."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ProxyError
from pipeline.requests.chat import ChatRequest
from pipeline.requests.shared.ignored import refuse

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
READ = {"type": "function", "function": {"name": "read"}}
HELLO = {"role": "user", "content": "Hello."}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.from_json({"model": "gpt-5", "messages": [HELLO], **fields})


UNUSED = {
    "temperature": 0.5,
    "top_p": 1,
    "seed": 7,
    "logit_bias": {"1": 2},
    "max_tokens": 10,
    "max_completion_tokens": 10,
    "logprobs": True,
    "top_logprobs": 3,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "flex",
    "prediction": {"type": "content", "content": "x"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "web_search_options": {},
    "safety_identifier": "s",
    "something_new": 1,
    "ignored": ["x"],
}
USED: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 2,
    "stop": ["x"],
    "tools": [SEARCH],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "A", "schema": SCHEMA, "strict": True},
    },
    "reasoning_effort": "low",
    "reasoning": {"effort": "low", "summary": "auto"},
    "verbosity": "low",
    "prompt_cache_key": "k",
}


GIVEN: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (UNUSED, tuple(UNUSED)),
    (dict.fromkeys(UNUSED), ()),
    (USED, ()),
    ({"functions": [{"name": "f"}], "function_call": "auto"}, ()),
    ({"zebra": 1, "apple": 2}, ("zebra", "apple")),
    (
        {
            "seed": 1,
            "tools": [SEARCH, {"type": "web_search"}, {"type": "custom", "custom": {}}],
            "user": "me",
        },
        ("seed", "tools[1].web_search", "tools[2].custom", "user"),
    ),
    (
        {"stream_options": {"include_usage": True, "include_obfuscation": True}},
        ("stream_options.include_obfuscation",),
    ),
    ({"reasoning": {"effort": "low", "exclude": True}}, ("reasoning.exclude",)),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {}, "strict": False, "description": "An A.", "x": 1},
            }
        },
        ("response_format.json_schema.x",),
    ),
    ({"functions": [{"name": "f"}], "tools": [READ]}, ("functions",)),
    ({"functions": [{"name": "f"}], "tool_choice": "none"}, ("tool_choice",)),
    # what was wished for is so anyway
    (
        {
            "store": False,
            "logprobs": False,
            "modalities": ["text"],
            "stream_options": {"include_obfuscation": False},
        },
        (),
    ),
    # names that no header could hold
    ({"a\r\nb: c, ö": 1}, ("a??b:?c???",)),
    ({"x" * 100: 1}, ("x" * 80,)),
    ({f"x{number}": 1 for number in range(60)}, tuple(f"x{number}" for number in range(50))),
]


@pytest.mark.parametrize(("fields", "ignored"), GIVEN)
def test_parameters_without_effect_are_listed_in_their_order(
    fields: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    assert request(**fields).ignored == ignored


def test_what_the_backend_has_no_use_for_is_listed_too() -> None:
    body = {"model": "gpt-5", "messages": [HELLO], "seed": 1, "prompt_cache_key": "k", "user": "me"}
    asked = ChatRequest.from_json(body, without_effect={"prompt_cache_key"})
    assert asked.ignored == ("seed", "prompt_cache_key", "user")


def test_a_strict_request_is_refused_for_the_first_of_them() -> None:
    with pytest.raises(ProxyError) as raised:
        refuse(request(seed=1, top_p=0.5).ignored)
    failure = raised.value.failure
    assert (failure.status, failure.type, failure.param) == (400, "invalid_request_error", "seed")
    assert "seed, top_p" in failure.message


def test_a_strict_request_whose_every_parameter_counts_is_not_refused() -> None:
    refuse(request(**USED).ignored)


STRICT = {"name": "s", "strict": True}


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"tools": [SEARCH, READ, {"type": "web_search"}]}, ()),
        ({"tools": [{"type": "function", "function": {**STRICT, "strict": False}}]}, ()),
        (
            {"tools": [READ, {"type": "function", "function": STRICT}]},
            ("tools[1].function.strict",),
        ),
        ({"functions": [{"name": "f"}, STRICT]}, ("functions[1].strict",)),
        ({"functions": [STRICT], "tools": [READ]}, ()),  # the functions themselves are ignored
    ],
)
def test_tools_that_ask_to_be_strict_are_found(
    fields: dict[str, Any], places: tuple[str, ...]
) -> None:
    assert request(**fields).strict_tools == places
