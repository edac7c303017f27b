"""Requests as real clients write them are taken; whatever else comes is refused in good order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from pipeline.errors import Failure, ProxyError
from pipeline.requests.chat import ChatRequest
from pipeline.requests.shared.ignored import refuse
from pipeline.turn import NamedTool, Turn

# -- what SDKs send, caught on its way -------------------------------------------------------------


class Answer(pydantic.BaseModel):
    """A small structured output."""

    city: str
    degrees: float | None


def caught(call: Callable[[Any], object]) -> ChatRequest:
    """The request that a client makes of a call."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "enough seen"}})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        pytest.raises(openai.BadRequestError),
    ):
        call(http)
    (body,) = bodies
    return ChatRequest.from_json(body)


def sdk(http: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url="http://localhost/v1", http_client=http)


def langchain(http: Any, **more: Any) -> Any:
    return ChatOpenAI(
        model="gpt-4.1",
        api_key=pydantic.SecretStr("none"),
        base_url="http://localhost/v1",
        http_client=http,
        max_retries=0,
        **more,
    )


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
LOOP: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is it in Bern?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]
LOOP_ITEMS = [
    ("message", "How is it in Bern?"),
    ("function_call", '{"city":"Bern"}'),
    ("function_call_output", "rain"),
]


def summary(turn: Turn) -> list[tuple[str, object]]:
    """The items of a turn, less what every one of them has."""
    words = ("content", "arguments", "output")
    return [
        (item["type"], next(item[word] for word in words if word in item)) for item in turn.items
    ]


def test_the_openai_sdk_streams_a_tool_loop() -> None:
    request = caught(
        lambda http: sdk(http).chat.completions.create(
            model="gpt-5",
            messages=LOOP,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            stream=True,
            stream_options={"include_usage": True},
            reasoning_effort="low",
            stop=["END"],
            n=2,
        )
    )
    turn = request.turn()
    assert request.ignored == ()
    assert (request.n, turn.stream, turn.include_usage, turn.stop) == (2, True, True, ("END",))
    assert turn.instructions == "Be brief."
    assert summary(turn) == LOOP_ITEMS
    assert turn.tools[0].strict is True
    assert turn.tool_choice == NamedTool("weather")


def test_the_openai_sdk_parses_a_structured_output() -> None:
    request = caught(
        lambda http: sdk(http).chat.completions.parse(
            model="gpt-5", messages=LOOP[:2], response_format=Answer
        )
    )
    assert request.ignored == ()
    schema = request.turn().output_schema
    assert schema is not None
    assert schema.schema["additionalProperties"] is False
    assert schema.schema["required"] == ["city", "degrees"]


def test_langchain_sends_a_tool_loop() -> None:
    messages = [
        SystemMessage("Be brief."),
        HumanMessage("How is it in Bern?"),
        AIMessage("", tool_calls=[{"id": "call_1", "name": "weather", "args": {"city": "Bern"}}]),
        ToolMessage("rain", tool_call_id="call_1"),
    ]
    request = caught(
        lambda http: langchain(http, temperature=0).bind_tools([WEATHER]).invoke(messages)
    )
    assert request.ignored == ("temperature",)
    assert [kind for kind, _ in summary(request.turn())] == [kind for kind, _ in LOOP_ITEMS]


def test_langchain_asks_for_a_structured_output() -> None:
    request = caught(
        lambda http: (
            langchain(http)
            .with_structured_output(Answer, method="json_schema")
            .invoke("How is it in Bern?")
        )
    )
    form = request.turn().output_schema
    assert form is not None
    schema = form.schema
    assert schema["required"] == list(schema["properties"]) == ["city", "degrees"]


# -- what clients in other languages send ----------------------------------------------------------

COPILOT: Any = {
    "model": "gpt-4.1",
    "temperature": 0.1,
    "max_tokens": 6000,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "You are Obsidian Copilot."},
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "What is in my notes?"},
    ],
}
AI_SDK: Any = {
    "model": "gpt-4.1",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it in Bern?"},
        {"role": "assistant", "content": "", "tool_calls": LOOP[2]["tool_calls"]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"type":"text","value":"rain"}'},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "type": "object",
                    "properties": {"city": dict[str, Any]()},
                    "additionalProperties": False,
                },
            },
        }
    ],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
NODE: Any = {
    "model": "gpt-5",
    "messages": LOOP,
    "tools": [WEATHER],
    "parallel_tool_calls": False,
    "stream": True,
}
LEGACY: Any = {
    "model": "gpt-4",
    "messages": [{"role": "user", "content": "Hi."}],
    "functions": [{"name": "f", "parameters": {"type": "object"}}],
    "function_call": "auto",
    "frequency_penalty": 0,
}


@pytest.mark.parametrize(
    ("body", "items", "ignored"),
    [
        (COPILOT, 3, ("temperature", "max_tokens")),
        (AI_SDK, 3, ()),
        (NODE, 3, ()),
        (LEGACY, 1, ("frequency_penalty",)),
    ],
    ids=["Obsidian Copilot", "AI SDK", "OpenAI Node", "legacy"],
)
def test_a_client_is_understood(body: object, items: int, ignored: tuple[str, ...]) -> None:
    request = ChatRequest.from_json(body)
    assert len(request.turn().items) == items
    assert request.ignored == ignored


# -- what nobody should send -----------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(
    [
        *("system", "user", "assistant", "tool", "function", "auto", "none", "required"),
        *("text", "image_url", "input_file", "file", "refusal", "json_schema", "a", ""),
        *("data:,x", "data:image/png;base64,", "http://x"),
    ]
)
NAMES = st.sampled_from(
    [
        *("role", "content", "type", "text", "image_url", "url", "detail", "file", "file_data"),
        *("tool_calls", "tool_call_id", "id", "function", "name", "arguments", "function_call"),
        *("parameters", "json_schema", "schema", "allowed_tools", "tools", "mode", "refusal"),
    ]
)
LIKELY = st.recursive(
    WORDS | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": WORDS, "content": LIKELY},
        optional={
            "tool_calls": LIKELY,
            "tool_call_id": WORDS,
            "name": WORDS,
            "function_call": LIKELY,
        },
    )
    | LIKELY,
    max_size=4,
)
BODIES = JSON | st.fixed_dictionaries(
    {"model": WORDS | SCALARS, "messages": MESSAGES | LIKELY},
    optional=dict.fromkeys(
        [
            *("tools", "tool_choice", "functions", "function_call", "response_format", "stop"),
            *("n", "stream", "stream_options", "reasoning", "reasoning_effort", "temperature"),
        ],
        LIKELY,
    ),
)


def failure_of(body: object, *, partial: bool) -> Failure | None:
    try:
        request = ChatRequest.from_json(body, partial=partial)
        request.turn()
        refuse(request.ignored + request.strict_tools)
    except ProxyError as error:
        return error.failure
    return None


@settings(max_examples=400, deadline=None)
@given(BODIES, st.booleans())
def test_whatever_comes_is_a_turn_or_a_400(body: object, partial: bool) -> None:
    failure = failure_of(body, partial=partial)
    if failure is not None:
        assert (failure.status, failure.type) == (400, "invalid_request_error")
        assert len(failure.message) < 6000


def test_a_mistake_of_ours_is_not_blamed_on_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> str:
        raise AttributeError("ours")

    monkeypatch.setattr("pipeline.requests.shared.parts.image_problem", broken)
    picture = {"type": "image_url", "image_url": {"url": "http://x"}}
    with pytest.raises(AttributeError, match="ours"):
        failure_of({"messages": [{"role": "user", "content": [picture]}]}, partial=True)
