"""The clients that people use on Node, each in a process of its own, against the real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from .conftest import Play

Scenario: TypeAlias = Callable[[str], Awaitable[Any]]

CLIENTS = {
    "openai": ("openai_chat.mjs", ()),
    "ai-sdk": ("ai_sdk.mjs", ("openai",)),
    "ai-sdk-compatible": ("ai_sdk.mjs", ("compatible",)),
    "langchain": ("langchain.mjs", ()),
}
ABORTED = {
    "openai": "APIUserAbortError",
    "ai-sdk": "quietly",  # its text stream just ends
    "ai-sdk-compatible": "quietly",
    "langchain": "DOMException",
}
SOON = 2000
HELLO = "Hello, wörld 🌍!"
MEETING = {
    "title": "some title",
    "hours": 7.5,
    "guests": [{"name": "some name", "role": "host"}],
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scenario(client: str, play: Play) -> Scenario:
    script, words = CLIENTS[client]

    async def run(name: str) -> Any:
        return await play(script, name, *words)

    return run


def finish(told: dict[str, Any]) -> str:
    """The finish reason; the AI SDK has a spelling of its own."""
    return str(told["finish"]).replace("-", "_")


async def test_text_arrives_in_pieces_with_its_count_of_tokens(scenario: Scenario) -> None:
    told = await scenario("text")
    assert (told["content"], told["calls"], finish(told)) == (HELLO, [], "stop")
    assert told["pieces"] > 1
    assert told["tokens"] == 153


async def test_text_arrives_at_once_where_no_stream_is_asked_for(scenario: Scenario) -> None:
    told = await scenario("text_at_once")
    assert (told["content"], told["calls"], finish(told)) == (HELLO, [], "stop")


async def test_one_call_arrives_after_its_text(scenario: Scenario) -> None:
    told = await scenario("one_call")
    call = {"id": "call_a", "name": "localSearch", "input": {"query": "x", "n": 1}}
    assert (told["content"], told["calls"]) == ("Let me look.", [call])
    assert finish(told) == "tool_calls"


async def test_three_calls_arrive_in_order(scenario: Scenario) -> None:
    told = await scenario("three_calls")
    assert told["calls"] == [
        {"id": "call_a", "name": "localSearch", "input": {"query": "a"}},
        {"id": "call_b", "name": "readNote", "input": {"path": "b.md"}},
        {"id": "call_c", "name": "localSearch", "input": {"query": "a"}},
    ]
    assert (told["content"], finish(told)) == ("On it.", "tool_calls")


async def test_a_tool_runs_and_the_model_answers_with_what_it_said(scenario: Scenario) -> None:
    told = await scenario("loop")
    assert told["ran"] == ["note Please use readNote"]
    assert told["final"] == "The tool said: note Please use readNote"


async def test_three_tools_run_before_the_model_answers(scenario: Scenario) -> None:
    told = await scenario("loop_of_three")
    assert told["ran"] == ["found a", "note b.md", "found a"]
    assert told["final"] == "The tool said: found a"


async def test_a_form_is_filled_in_streamed_or_not(scenario: Scenario) -> None:
    assert await scenario("structured") == [MEETING, MEETING]


async def test_an_error_keeps_its_status_and_its_code(scenario: Scenario) -> None:
    told = await scenario("errors")
    facts = {name: (error["status"], error["code"]) for name, error in told.items()}
    expected: dict[str, tuple[int | None, str]] = {
        "wrong_field": (400, "invalid_request_error"),
        "wrong_key": (401, "invalid_api_key"),
        "unknown_model": (404, "model_not_found"),
        "limit": (429, "insufficient_quota"),
        "limit_streamed": (429, "insufficient_quota"),
        "mid_stream": (None, "upstream_error"),
    }
    assert facts == {name: expected[name] for name in facts}
    assert {"wrong_key", "limit", "limit_streamed", "mid_stream"} <= set(facts)


async def test_each_error_is_of_the_openai_sdk_s_own_class(play: Play) -> None:
    told = await play("openai_chat.mjs", "errors")
    assert {name: error["name"] for name, error in told.items()} == {
        "wrong_field": "BadRequestError",
        "wrong_key": "AuthenticationError",
        "unknown_model": "NotFoundError",
        "limit": "RateLimitError",
        "limit_streamed": "RateLimitError",
        "mid_stream": "APIError",
    }
    assert told["wrong_field"]["param"] == "tools"
    assert all(error["request"] for error in told.values())  # each can be found in the log


async def test_who_gives_up_is_free_at_once_and_the_next_question_is_answered(
    client: str, scenario: Scenario
) -> None:
    told = await scenario("abort")
    assert (told["heard"], told["ended"], told["next"]) == ("Wait", ABORTED[client], HELLO)
    assert told["ms"] < SOON
