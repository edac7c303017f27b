"""Every event as OpenAI's own package knows it, and whole streams through its client."""

from __future__ import annotations

from typing import Any, get_args

import httpx2
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ValidationError

from pipeline.errors import ProxyError
from pipeline.events import Event, ReasoningDelta, ReasoningItem, TextDelta, ToolCall, TurnEnd
from sinks.responses import ResponsesJson, ResponsesSse
from tests.support.responses_automaton import KINDS, parse_stream
from tests.support.responses_turns import CALL, DOWN, END, SECOND, USAGE, body, options, stream

UNION = get_args(ResponseStreamEvent)[0]
MODELS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(UNION)
}
TURNS: dict[str, list[Event]] = {
    "text": [TextDelta("Hi "), TextDelta("there"), USAGE, END],
    "text, calls, text": [TextDelta("a"), CALL, SECOND, TextDelta("b"), USAGE, END],
    "calls in namespaces": [
        ToolCall("call_a", "crm__find", "{}"),
        ToolCall("call_b", "box__run", '{"input":"ls"}', index=1),
        END,
    ],
    "free text": [ToolCall("call_a", "shell", '{"input":"ls"}'), END],
    "a summary": [
        ReasoningDelta("A", item_id="rs_x"),
        ReasoningDelta("B", part=1, item_id="rs_x"),
        ReasoningItem("rs_x", ("A", "B"), "sealed"),
        TextDelta("42"),
        END,
    ],
    "reasoning": [ReasoningDelta("A", "text"), TextDelta("42"), END],
    "nothing": [END],
    "a limit": [TextDelta("Half"), TurnEnd("max_output_tokens")],
    "a failure": [TextDelta("Half"), DOWN, TurnEnd("failed")],
}
TELLS_SEALED = {"include_encrypted": True}


def as_newest(value: Any) -> Any:
    """The newest schema counts tokens written to a cache, which no backend here tells of."""
    if isinstance(value, dict) and isinstance(value.get("usage"), dict):  # pyright: ignore[reportUnknownMemberType]
        value["usage"]["input_tokens_details"]["cache_write_tokens"] = 0
    return value  # pyright: ignore[reportUnknownVariableType]


def validated(event: dict[str, Any]) -> BaseModel:
    as_newest(event.get("response"))
    return MODELS[event["type"]].model_validate(event, strict=True)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())
def test_every_event_is_valid_for_openais_package(turn: list[Event]) -> None:
    for event in stream(*turn, **TELLS_SEALED):
        known = validated(event)
        extra = set(known.model_extra or {})
        # An error's inner object is for the clients that read nothing else, the name of a call
        # for those of an older schema.
        allowed = {"error": {"error"}, "response.function_call_arguments.done": {"name"}}
        assert extra <= allowed.get(event["type"], set()), event


def test_the_turns_hold_every_kind_of_event() -> None:
    seen = {event["type"] for turn in TURNS.values() for event in stream(*turn)}
    assert seen | {"keepalive"} == KINDS
    assert KINDS - set(MODELS) == {"keepalive"}


def test_the_check_can_fail() -> None:
    *_, last = stream(*TURNS["text"])
    del last["response"]["parallel_tool_calls"]
    with pytest.raises(ValidationError):
        validated(last)


@pytest.mark.parametrize(
    "turn", [turn for turn in TURNS.values() if DOWN not in turn], ids=TURNS.keys() - {"a failure"}
)
def test_the_body_is_valid_for_openais_package(turn: list[Event]) -> None:
    Response.model_validate(as_newest(body(*turn, **TELLS_SEALED)), strict=True)


# -- its client ------------------------------------------------------------------------------------


def client(content: bytes, kind: str = "text/event-stream", status: int = 200) -> openai.OpenAI:
    """OpenAI's client, answered with these bytes."""
    headers = {"content-type": kind}
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(status, content=content, headers=headers)
    )
    return openai.OpenAI(
        api_key="none",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=transport),
    )


def with_silence(turn: list[Event]) -> bytes:
    """A stream with a sign of life before and after each of its events."""
    encoder = ResponsesSse(options(**TELLS_SEALED))
    pieces: list[bytes] = []
    for event in turn:
        pieces += (encoder.keepalive(), encoder.feed([event]), encoder.keepalive())
    return b"".join(pieces)


GOOD = {name: turn for name, turn in TURNS.items() if name not in ("a limit", "a failure")}


@pytest.mark.parametrize("turn", GOOD.values(), ids=GOOD.keys())
def test_the_clients_own_accumulator_makes_the_body_of_a_stream(turn: list[Event]) -> None:
    with client(with_silence(turn)).responses.stream(model="m", input="Hi") as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    found = final.to_dict(mode="json")
    expected = body(*turn, **TELLS_SEALED)
    assert [_plain(item) for item in _output(found)] == [
        _plain(item) for item in expected["output"]
    ]
    said = [item["content"][0]["text"] for item in expected["output"] if item["type"] == "message"]
    assert final.output_text == "".join(said)


def _output(found: dict[str, object]) -> list[dict[str, Any]]:
    output: Any = found["output"]
    return output  # type: ignore[no-any-return]


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """An item without what the client adds to it: arguments and texts that it has parsed."""
    own = {name: value for name, value in item.items() if not name.startswith("parsed")}
    if item["type"] == "message":
        own["content"] = [
            {name: value for name, value in part.items() if name != "parsed"}
            for part in item["content"]
        ]
    return own


def read(data: bytes, seen: list[str]) -> None:
    events = client(data).responses.create(model="m", input="Hi", stream=True)
    seen.extend(event.type for event in events)


def test_the_client_reads_an_incomplete_stream_to_its_end() -> None:
    seen: list[str] = []
    read(with_silence(TURNS["a limit"]), seen)
    assert seen[-1] == "response.incomplete"


def test_the_client_raises_what_the_stream_failed_with() -> None:
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="down") as raised:
        read(with_silence(TURNS["a failure"]), seen)
    assert seen[-1] == "response.failed"
    assert raised.value.code == "server_error"


def test_the_client_reads_the_body() -> None:
    sink = ResponsesJson(options())
    sink.feed([TextDelta("Hi"), USAGE, END])
    data = msgspec.json.encode(sink.result().body)
    response = client(data, "application/json").responses.create(model="m", input="Hi")
    assert response.output_text == "Hi"
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 9


def test_what_was_refused_before_the_first_byte_left_nothing_to_parse() -> None:
    encoder = ResponsesSse(options())
    with pytest.raises(ProxyError):
        encoder.feed([DOWN, TurnEnd("failed")])
    alive = ResponsesSse(options())
    data = alive.keepalive() + alive.feed([DOWN, TurnEnd("failed")])
    assert [event["type"] for event in parse_stream(data)][-2:] == ["response.failed", "error"]
