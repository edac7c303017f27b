"""The ten cases that Open Responses asks of a server, as the sinks write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import field, frozen

from pipeline.assembly import Settings, responses_options
from pipeline.errors import ProxyError
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    TextDelta,
    ToolCall,
    TurnEnd,
    Usage,
)
from pipeline.turn import Tool, Turn
from sinks.responses import ResponsesJson, ResponsesSse
from tests.support.responses_automaton import check_stream, parse_stream
from tests.support.responses_objects import check_response
from tests.support.responses_turns import DOWN

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "the weather at a place",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    "strict": True,
}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
END = TurnEnd("completed")


@frozen
class Case:
    """What was asked, what the model did, and the fields and items that must come back."""

    events: Sequence[Event]
    kinds: list[str]
    echo: dict[str, Any] = field(factory=dict[str, Any])
    repeats: dict[str, Any] = field(factory=dict[str, Any])
    status: str = "completed"


CASES = {
    "a basic text answer": Case([TextDelta("Hello."), Usage(9, 2, 11), END], ["message"]),
    "a streamed text answer": Case(
        [*map(TextDelta, ("1 ", "2 ", "3")), Usage(9, 3, 12), END],
        ["message"],
        {"stream": True},
    ),
    "instructions": Case(
        [TextDelta("Arr."), END],
        ["message"],
        {"instructions": "Speak as a pirate."},
        {"instructions": "Speak as a pirate."},
    ),
    "a call of a function": Case(
        [ToolCall("call_1", "get_weather", '{"location":"Oslo"}'), END],
        ["function_call"],
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "an image": Case([TextDelta("A red heart."), Usage(300, 4, 304), END], ["message"]),
    "a later turn": Case(
        [TextDelta("Your name is Ada."), END],
        ["message"],
        {"previous_response_id": "resp_before", "store": True},
        {"previous_response_id": "resp_before", "store": True},
    ),
    "a structured answer": Case(
        [TextDelta('{"city":'), TextDelta('"Oslo"}'), END],
        ["message"],
        {"text": {"format": {"type": "json_schema", "name": "place", "schema": PLACE}}},
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "place",
                    "schema": PLACE,
                    "description": None,
                    "strict": None,
                }
            }
        },
    ),
    "reasoning": Case(
        [
            ReasoningDelta("Adding.", item_id="rs_1"),
            ReasoningItem("rs_1", ("Adding.",), "sealed"),
            TextDelta("4"),
            Usage(9, 40, 49, 0, 32),
            END,
        ],
        ["reasoning", "message"],
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"reasoning": {"effort": "low", "summary": "auto"}},
    ),
    "an answer cut by its limit": Case(
        [TextDelta("Once upon a"), TurnEnd("max_output_tokens")],
        ["message"],
        {"max_output_tokens": 16},
        {"max_output_tokens": 16, "incomplete_details": {"reason": "max_output_tokens"}},
        "incomplete",
    ),
}


def asked(case: Case) -> tuple[bytes, dict[str, Any]]:
    """The stream and the body of a case."""
    turn = Turn(model="gpt-5", tools=(Tool("get_weather"),))
    options = responses_options(Settings(), turn, case.echo, include_encrypted=True)
    sink = ResponsesJson(options)
    sink.feed(case.events)
    return ResponsesSse(options).feed(case.events), sink.result().body


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_case_has_its_items_and_every_required_field(case: Case) -> None:
    stream, body = asked(case)
    for response in (body, check_stream(stream)):
        check_response(response)
        assert response["model"] == "gpt-5"
        assert response["status"] == case.status
        assert [item["type"] for item in response["output"]] == case.kinds
        assert {name: response[name] for name in case.repeats} == case.repeats


def test_a_streamed_answer_comes_in_pieces() -> None:
    stream, _ = asked(CASES["a streamed text answer"])
    deltas = [e["delta"] for e in parse_stream(stream) if e["type"].endswith("text.delta")]
    assert deltas == ["1 ", "2 ", "3"]


def test_sealed_reasoning_can_be_sent_back_as_it_is() -> None:
    _, body = asked(CASES["reasoning"])
    summary = [{"type": "summary_text", "text": "Adding."}]
    assert body["output"][0] == {
        "id": "rs_1",
        "type": "reasoning",
        "summary": summary,
        "encrypted_content": "sealed",
    }


def test_the_tenth_case_an_error_is_a_whole_one_before_and_within_a_stream() -> None:
    options = responses_options(Settings(), Turn())
    refused: list[Event] = [DOWN, TurnEnd("failed")]
    with pytest.raises(ProxyError) as raised:
        ResponsesSse(options).feed(refused)
    assert set(raised.value.failure.body()["error"]) == {"message", "type", "code", "param"}
    begun: list[Event] = [TextDelta("a"), Failed(DOWN.error), TurnEnd("failed")]
    response = check_stream(ResponsesSse(options).feed(begun))
    assert response["error"] == {"code": "server_error", "message": "down"}
