from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.errors import ProxyError, UsageError
from pipeline.turn import NamedTool, OutputSchema, Tool, ToolChoice, Turn
from sources.responses_request import ResponsesApi, request_body

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CLOSED: dict[str, Any] = {**SCHEMA, "additionalProperties": False}
SAID = {"type": "message", "role": "user", "content": "Grüße 🌍"}


def body_of(turn: Turn) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request_body(turn))
    return found


def test_a_plain_turn_requests_nothing_extra() -> None:
    assert body_of(Turn(model="gpt-5", items=(SAID,))) == {
        "model": "gpt-5",
        "input": [SAID],
        "stream": True,
        "store": False,
    }


def test_tools_are_flat_and_have_a_schema() -> None:
    tools = (Tool("localSearch", SCHEMA, "searches the vault"), Tool("now"))
    body = body_of(Turn(tools=tools))
    assert body["tools"] == [
        {
            "type": "function",
            "name": "localSearch",
            "description": "searches the vault",
            "parameters": SCHEMA,
        },
        {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}},
    ]
    assert "parallel_tool_calls" not in body


@pytest.mark.parametrize("strict", [True, False])
def test_strictness_goes_along_only_where_the_client_spoke_of_it(strict: bool) -> None:
    told, untold = body_of(Turn(tools=(Tool("a", strict=strict), Tool("b"))))["tools"]
    assert told["strict"] is strict
    assert "strict" not in untold


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("none", "none"),
        ("required", "required"),
        (NamedTool("now"), {"type": "function", "name": "now"}),
    ],
)
def test_a_choice_of_tools_is_said_as_the_api_says_it(choice: ToolChoice, sent: object) -> None:
    body = body_of(Turn(tools=(Tool("now"), Tool("later")), tool_choice=choice))
    assert body["tool_choice"] == sent
    assert [tool["name"] for tool in body["tools"]] == ["now", "later"]
    assert "tool_choice" not in body_of(Turn(tool_choice=choice))


def test_a_free_choice_is_not_spoken_of() -> None:
    assert "tool_choice" not in body_of(Turn(tools=(Tool("now"),)))


@pytest.mark.parametrize(
    "wish", [{"parallel_tool_calls": False}, {"legacy_functions": True}], ids=str
)
def test_who_can_take_one_call_only_asks_for_one(wish: dict[str, bool]) -> None:
    assert body_of(Turn(tools=(Tool("now"),), **wish))["parallel_tool_calls"] is False  # type: ignore[arg-type]
    assert "parallel_tool_calls" not in body_of(Turn(**wish))  # type: ignore[arg-type]


def test_the_key_of_the_prompt_cache_goes_along() -> None:
    assert body_of(Turn(prompt_cache_key="k"))["prompt_cache_key"] == "k"


def test_instructions_of_both_kinds_go_along() -> None:
    assert body_of(Turn(instructions="Be brief."))["instructions"] == "Be brief."
    both = Turn(base_instructions="You are kind.", instructions="Be brief.")
    assert body_of(both)["instructions"] == "You are kind.\n\nBe brief."


def test_reasoning_is_asked_for_sealed_since_nothing_is_stored() -> None:
    body = body_of(Turn(effort="high", summary="auto"))
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body_of(Turn(effort="low"))["reasoning"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (OutputSchema(CLOSED), {"name": "answer", "schema": CLOSED, "strict": True}),
        (OutputSchema(CLOSED, "A"), {"name": "A", "schema": CLOSED, "strict": True}),
        (OutputSchema(CLOSED, ""), {"name": "answer", "schema": CLOSED, "strict": True}),
        (
            OutputSchema(CLOSED, "A", "An A.", strict=True),
            {"name": "A", "description": "An A.", "schema": CLOSED, "strict": True},
        ),
        # the client's own word
        (OutputSchema(CLOSED, strict=False), {"name": "answer", "schema": CLOSED, "strict": False}),
        # what OpenAI would refuse if it were called strict
        (
            OutputSchema(SCHEMA, "A", "An A."),
            {"name": "A", "description": "An A.", "schema": SCHEMA, "strict": False},
        ),
        (OutputSchema(SCHEMA, strict=False), {"name": "answer", "schema": SCHEMA, "strict": False}),
    ],
)
def test_a_schema_for_the_answer_is_a_text_format_and_strict_where_it_can_be(
    wanted: OutputSchema, sent: dict[str, Any]
) -> None:
    assert body_of(Turn(output_schema=wanted))["text"] == {
        "format": {"type": "json_schema", **sent}
    }


def test_how_much_is_said_goes_along_with_the_format() -> None:
    assert body_of(Turn(verbosity="low"))["text"] == {"verbosity": "low"}
    assert set(body_of(Turn(verbosity="low", output_schema=OutputSchema(SCHEMA)))["text"]) == {
        "format",
        "verbosity",
    }


@pytest.mark.parametrize(
    "turn",
    [
        Turn(items=({"role": "user", "content": "\ud800"},)),
        Turn(instructions="\udfff"),
        Turn(tools=(Tool("now", description="\ud800"),)),
    ],
)
def test_half_a_surrogate_pair_is_a_bad_request(turn: Turn) -> None:
    with pytest.raises(ProxyError, match="surrogate") as raised:
        request_body(turn)
    assert raised.value.failure.status == 400


# -- where it goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1/responses"),
        (" http://localhost:8000/ ", "http://localhost:8000/v1/responses"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/responses", "https://api.openai.com/v1/responses"),
        ("http://[::1]:8/api/v1", "http://[::1]:8/api/v1/responses"),
        ("https://a.example/openai/v1?api-version=p", "https://a.example/openai/v1/responses?api-version=p"),
    ],
)  # fmt: skip
def test_an_address_may_be_given_as_far_as_one_likes(address: str, url: str) -> None:
    assert ResponsesApi(address).url == url


@pytest.mark.parametrize(
    "address", ["", "localhost:8000", "ftp://a.example/v1", "http://", "http://a:b/", "unix:/sock"]
)
def test_an_address_that_is_none_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(
        UsageError, match=r"PROXY_BACKEND must be a URL such as https://api\.openai\.com/v1"
    ):
        ResponsesApi(address)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="PROXY_BACKEND_API_KEY") as raised:
        ResponsesApi("https://me:hunter2@a.example/v1")
    assert "hunter2" not in str(raised.value)


# -- the key ---------------------------------------------------------------------------------------


def test_the_key_is_in_its_header_and_in_no_repr() -> None:
    api = ResponsesApi("http://localhost:8000", " sk-secret-0123456789\n")
    assert api.headers()["authorization"] == "Bearer sk-secret-0123456789"
    assert "sk-secret" not in repr(api)
    assert "authorization" not in ResponsesApi("http://localhost:8000").headers()


@pytest.mark.parametrize("key", ["sk-secret\n1", "sk secret", "sk-schlüssel", "sk-\x7f"])
def test_a_key_that_fits_no_header_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(UsageError, match="PROXY_BACKEND_API_KEY") as raised:
        ResponsesApi("http://localhost:8000", key)
    assert key not in str(raised.value)


def test_the_key_is_taken_out_of_what_a_backend_says() -> None:
    api = ResponsesApi("http://localhost:8000", "sk-secret-0123456789")
    assert api.without_key("bad key: sk-secret-0123456789!") == "bad key: …!"


def test_a_word_in_the_place_of_a_key_is_no_secret() -> None:
    assert ResponsesApi("http://localhost:8000", "none").without_key("none such") == "none such"
