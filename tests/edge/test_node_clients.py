"""The clients that people use on Node, each in a process of its own, against the real server."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Play, Told

CLIENTS = {
    "openai": ("openai_chat.mjs",),
    "ai-sdk": ("ai_sdk.mjs", "openai"),
    "ai-sdk-compatible": ("ai_sdk.mjs", "compatible"),
    "langchain": ("langchain.mjs", "chat"),
    "openai-responses": ("openai_responses.mjs",),
    "ai-sdk-responses": ("ai_sdk.mjs", "responses"),
    "langchain-responses": ("langchain.mjs", "responses"),
}
ABORTED = {
    "openai": "APIUserAbortError",
    "ai-sdk": "quietly",  # its text stream just ends
    "ai-sdk-compatible": "quietly",
    "langchain": "DOMException",
    "openai-responses": "APIUserAbortError",
    "ai-sdk-responses": "quietly",
    "langchain-responses": "DOMException",
}
IN_THE_MIDDLE: dict[str, tuple[int | None, str]] = {
    # It takes the place of a status for one: the stream's own was sent long before.
    "ai-sdk-responses": (500, "server_error"),
    "openai-responses": (None, "server_error"),
    "langchain-responses": (None, "server_error"),
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
def told(client: str, play: Play) -> Told:
    return play(*CLIENTS[client])


def finish(answer: dict[str, Any]) -> str:
    """The finish reason; the AI SDK has a spelling, the Responses API a word of its own."""
    if answer["finish"] == "completed":
        return "tool_calls" if answer["calls"] else "stop"
    return str(answer["finish"]).replace("-", "_")


def test_text_arrives_in_pieces_with_its_count_of_tokens(told: Told) -> None:
    answer = told["text"]
    assert (answer["content"], answer["calls"], finish(answer)) == (HELLO, [], "stop")
    assert answer["pieces"] > 1
    assert answer["tokens"] == 153


def test_silence_is_broken_without_a_word_of_it_in_the_answer(told: Told) -> None:
    answer = told["silence"]
    assert (answer["content"], answer["calls"], finish(answer)) == ("Wait for it.", [], "stop")


def test_text_arrives_at_once_where_no_stream_is_asked_for(told: Told) -> None:
    answer = told["text_at_once"]
    assert (answer["content"], answer["calls"], finish(answer)) == (HELLO, [], "stop")


def test_one_call_arrives_after_its_text(told: Told) -> None:
    answer = told["one_call"]
    call = {"id": "call_a", "name": "localSearch", "input": {"query": "x", "n": 1}}
    assert (answer["content"], answer["calls"]) == ("Let me look.", [call])
    assert finish(answer) == "tool_calls"


def test_three_calls_arrive_in_order(told: Told) -> None:
    answer = told["three_calls"]
    assert answer["calls"] == [
        {"id": "call_a", "name": "localSearch", "input": {"query": "a"}},
        {"id": "call_b", "name": "readNote", "input": {"path": "b.md"}},
        {"id": "call_c", "name": "localSearch", "input": {"query": "a"}},
    ]
    assert (answer["content"], finish(answer)) == ("On it.", "tool_calls")


def test_a_tool_runs_and_the_model_answers_with_what_it_said(told: Told) -> None:
    answer = told["loop"]
    assert answer["ran"] == ["note Please use readNote"]
    assert answer["final"] == "The tool said: note Please use readNote"


def test_three_tools_run_before_the_model_answers(told: Told) -> None:
    answer = told["loop_of_three"]
    assert answer["ran"] == ["found a", "note b.md", "found a"]
    assert answer["final"] == "The tool said: found a"


def test_a_form_is_filled_in_streamed_or_not(told: Told) -> None:
    assert told["structured"] == [MEETING, MEETING]


def test_an_error_keeps_its_status_and_its_code(client: str, told: Told) -> None:
    errors = told["errors"]
    facts = {name: (error["status"], error["code"]) for name, error in errors.items()}
    expected: dict[str, tuple[int | None, str]] = {
        "wrong_field": (400, "invalid_request_error"),
        "wrong_key": (401, "invalid_api_key"),
        "unknown_model": (404, "model_not_found"),
        "limit": (429, "insufficient_quota"),
        "limit_streamed": (429, "insufficient_quota"),
        "mid_stream": IN_THE_MIDDLE.get(client, (None, "upstream_error")),
    }
    assert facts == {name: expected[name] for name in facts}
    assert {"wrong_key", "limit", "limit_streamed", "mid_stream"} <= set(facts)


def test_each_error_is_of_the_openai_sdk_s_own_class(play: Play) -> None:
    errors = play("openai_chat.mjs")["errors"]
    assert {name: error["name"] for name, error in errors.items()} == {
        "wrong_field": "BadRequestError",
        "wrong_key": "AuthenticationError",
        "unknown_model": "NotFoundError",
        "limit": "RateLimitError",
        "limit_streamed": "RateLimitError",
        "mid_stream": "APIError",
    }
    assert errors["wrong_field"]["param"] == "tools"
    assert all(error["request"] for error in errors.values())  # each can be found in the log


def test_who_gives_up_is_free_at_once_and_the_next_question_is_answered(
    client: str, told: Told
) -> None:
    answer = told["abort"]
    assert (answer["heard"], answer["ended"], answer["next"]) == ("Wait", ABORTED[client], HELLO)
    assert answer["ms"] < SOON


# -- the Responses API alone -----------------------------------------------------------------------


def test_a_compacted_conversation_goes_on_from_its_summary(play: Play) -> None:
    answer = play("openai_responses.mjs")["compacted"]
    assert (answer["object"], answer["tokens"]) == ("response.compaction", 153)
    assert "You said: " in answer["recalled"]
    assert "assistant: You said: I like plums" not in answer["recalled"]


def test_a_response_is_kept_with_its_input_until_it_is_deleted(play: Play) -> None:
    answer = play("openai_responses.mjs")["kept"]
    assert answer == {"text": HELLO, "items": ["message"], "gone": 404}


@pytest.mark.parametrize("provider", ["openai", "compatible", "responses"])
def test_the_ai_sdk_goes_on_from_what_was_thought_and_said(play: Play, provider: str) -> None:
    answer = play("ai_sdk.mjs", provider)["two_turns"]
    assert (answer["first"], answer["second"].splitlines()[-1]) == ("42", "assistant: 42")


def test_the_ai_sdk_refers_to_what_the_server_already_knows(play: Play) -> None:
    told = play("ai_sdk.mjs", "responses")
    assert told["two_turns"]["thought"] == "**Thinking** hard"
    asked = [item for t in told.exchanges for body in t.asked for item in body["input"]]
    referred = [item["id"] for item in asked if item.get("type") == "item_reference"]
    answers = [e["response"] for t in told.exchanges for e in t.events if "response" in e]
    known = {item["id"]: item["type"] for answer in answers for item in answer["output"]}
    assert [known[identity] for identity in referred] == ["reasoning", "message"]
