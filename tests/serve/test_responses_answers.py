"""Answers on the Responses API, whole and streamed, and beside those of a chat."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from pipeline.events import Failed, ReasoningDelta, ReasoningItem, TextDelta, ToolCall, TurnEnd
from tests.serve.asking import LOOK, RESPONSES, post, refused, respond, text, wish
from tests.serve.scripted import (
    BROKEN,
    FAILS,
    HELLO,
    USAGE,
    Script,
    ScriptedBackend,
    Served,
    call,
    served,
    tools,
)
from tests.serve.wire import post as as_bytes
from tests.serve.wire import wire
from tests.support.responses_automaton import check_stream, parse_stream

CALLS: Script = (TextDelta("Looking."), call("a"), call("b", 1), USAGE, TurnEnd())
SEALED = ReasoningItem("rs_b", ("Hm.",), "sealed-1")
THOUGHT: Script = (ReasoningDelta("Hm.", item_id="rs_b"), SEALED, TextDelta("42"), USAGE, TurnEnd())
SCRIPTS: dict[str, Script] = {
    "text": HELLO,
    "calls": CALLS,
    "a call alone": (call("a", arguments='{"x": 1.0}'), TurnEnd()),
    "nothing": (TurnEnd(),),
    "reasoning": THOUGHT,
    "cut by its length": (TextDelta("Hal"), USAGE, TurnEnd("length")),
    "refused": (TextDelta("No"), TurnEnd("content_filter")),
    "failed after a call": (TextDelta("Looking."), call("a"), *FAILS),
}
OWN = {"id", "created_at", "completed_at"}


def comparable(response: Any) -> Any:
    """A response without what is its own."""
    if isinstance(response, dict):
        return {name: comparable(one) for name, one in response.items() if name not in OWN}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(response, list):
        return [comparable(one) for one in response]  # pyright: ignore[reportUnknownVariableType]
    return response


async def test_a_stream_has_its_headers_and_no_others_that_mislead(shared: Served) -> None:
    answer = await post(shared, stream=True, headers={"x-request-id": "r-1"})
    told = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
        "x-proxy-output-mode": "auto",
        "x-codex-stop-after-tools-mode": "burst",
        "x-request-id": "r-1",
    }
    assert {name: answer.headers[name] for name in told} == told
    assert not {"openai-model", "content-length"} & set(answer.headers)
    assert text(check_stream(answer.content)) == "Hello, world"


async def test_a_whole_answer_has_its_headers_and_no_others_that_mislead() -> None:
    async with served(ScriptedBackend(CALLS)) as here:
        answer = await post(here, tools=[LOOK])
    told = {
        "content-type": "application/json",
        "x-proxy-output-mode": "openai-json",
        "x-codex-tool-call-count": "2",
        "x-codex-tool-call-truncated": "false",
    }
    assert {name: answer.headers[name] for name in told} == told
    assert answer.headers["x-request-id"]
    assert "openai-model" not in answer.headers


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_stream_ends_with_the_answer_that_is_not_streamed(name: str) -> None:
    async with served(ScriptedBackend(SCRIPTS[name])) as here:
        streamed = await respond(here, tools=[LOOK], stream=True)
        whole = await respond(here, tools=[LOOK])
    assert comparable(streamed) == comparable(whole)
    assert streamed["id"] != whole["id"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_chat_says_calls_and_counts_the_same(name: str, stream: bool) -> None:
    async with served(ScriptedBackend(SCRIPTS[name])) as here:
        response = await respond(here, tools=[LOOK], stream=stream)
        chat = (await here.ask(tools=tools("look"))).json()
    message, used = chat["choices"][0]["message"], response["usage"]
    assert text(response) == (message["content"] or "")
    assert [
        (item["call_id"], item["name"], item["arguments"])
        for item in response["output"]
        if item["type"] == "function_call"
    ] == [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls", [])
    ]
    counts = chat["usage"] and (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"])
    assert (used and (used["input_tokens"], used["output_tokens"])) == counts


# -- failures and silences -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_byte_has_its_status(stream: bool) -> None:
    async with served(ScriptedBackend(FAILS)) as here:
        answer = await post(here, stream=stream)
    assert refused(answer, 502) == ("upstream_error", None)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "broken", [Failed(BROKEN), ValueError("oops")], ids=["a failure", "a mistake"]
)
async def test_a_failure_after_some_words_is_told_within_and_ends_the_stream_at_once(
    broken: Failed | ValueError,
) -> None:
    backend = ScriptedBackend((TextDelta("Hal"), broken, trio.Event()))
    async with served(backend) as here:
        answer = await post(here, stream=True)
        kinds = [event["type"] for event in parse_stream(answer.content)]
        (line,) = await here.until_logged()
    assert kinds[-2:] == ["response.failed", "error"]
    response = check_stream(answer.content)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert text(response) == "Hal"
    assert response["output"][0]["status"] == "incomplete"
    assert line["error_code"] in {"upstream_error", "internal_error"}


async def test_a_failure_after_a_silence_is_told_within() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *FAILS))
    async with (
        served(backend, prime_window=0.01, ping_interval=60.0) as here,
        here.client.stream("POST", RESPONSES, json=wish(stream=True)) as answer,
    ):
        go.set()
        response = check_stream(await answer.aread())
    assert (answer.status_code, response["status"]) == (200, "failed")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_after_a_call_leaves_the_call_to_be_run(stream: bool) -> None:
    backend = ScriptedBackend((call("a"), *FAILS))
    async with served(backend) as here:
        response = await respond(here, tools=[LOOK], stream=stream)
        (line,) = await here.until_logged()
        assert here.metric('proxy_errors_total{code="upstream_error"}') == 1
    assert (response["status"], response["error"]) == ("completed", None)
    assert [item["call_id"] for item in response["output"]] == ["call_a"]
    assert (line["error_after_calls"], line["status"]) == ("upstream_error", 200)


@pytest.mark.parametrize("words", [(), (TextDelta("Well"),)], ids=["at once", "in the middle"])
async def test_a_silence_is_broken_by_events_that_are_numbered_too(words: Script) -> None:
    go = trio.Event()
    backend = ScriptedBackend((*words, go, *HELLO))
    async with (
        served(backend, prime_window=0.01, ping_interval=0.01) as here,
        here.client.stream("POST", RESPONSES, json=wish(stream=True)) as answer,
    ):
        data = b""
        async for piece in answer.aiter_bytes():
            data += piece
            if data.count(b'"keepalive"') >= 2:
                go.set()
    assert text(check_stream(data)).endswith("Hello, world")


async def test_a_client_that_leaves_ends_its_turn_once() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        async with wire(here) as connection:
            await connection.write(as_bytes(wish(stream=True), path=RESPONSES))
            await connection.read_until(b'"Hi"')
        (line,) = await here.until_logged()
        turn = await backend.until_turn()
        await turn.over.wait()
        assert here.server.admission.running == 0
    assert (turn.left, len(backend.turns), line["client_left"]) == ("cancelled", 1, True)


# -- wishes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by", ["header", "setting"])
async def test_blocks_stay_in_the_text_beside_the_items(by: str, stream: bool) -> None:
    flags = {"responses_output_mode": "obsidian-xml"} if by == "setting" else {}
    headers = {"x-proxy-output-mode": "obsidian-xml"} if by == "header" else {}
    backend = ScriptedBackend((TextDelta("So: "), call("a", arguments='{"q":"x"}'), TurnEnd()))
    async with served(backend, **flags) as here:
        answer = await post(here, tools=[LOOK], stream=stream, headers=headers)
        chat = await here.ask(tools=tools("look"))
    response = check_stream(answer.content) if stream else answer.json()
    assert answer.headers["x-proxy-output-mode"] == "obsidian-xml"
    assert text(response).startswith("So: <use_tool>")
    assert "<q>x</q>" in text(response)
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert chat.json()["choices"][0]["message"]["content"] == "So: "


@pytest.mark.parametrize(
    ("limit", "ids"),
    [
        ({}, ["call_a", "call_b", "call_c"]),
        ({"max_tool_calls": 2}, ["call_a", "call_b"]),
        ({"parallel_tool_calls": False}, ["call_a"]),
    ],
)
async def test_no_more_calls_come_than_were_asked_for(limit: Any, ids: list[str]) -> None:
    backend = ScriptedBackend((call("a"), call("b", 1), call("c", 2), TurnEnd()))
    async with served(backend) as here:
        answer = await post(here, tools=[LOOK], **limit)
    assert [item["call_id"] for item in answer.json()["output"]] == ids
    assert answer.headers["x-codex-tool-call-truncated"] == str(len(ids) < 3).lower()
    assert {name: answer.json()[name] for name in limit} == limit


async def test_what_has_no_effect_is_named_or_refused_where_that_is_wanted(shared: Served) -> None:
    more = {"temperature": 0.5, "tools": [{"type": "web_search"}], "nonsense": 1}
    answer = await post(shared, **more)
    assert answer.headers["x-proxy-ignored-params"] == "temperature, tools[0].web_search, nonsense"
    assert answer.json()["temperature"] == 0.5
    strict = await post(shared, **more, headers={"x-proxy-strict": "1"})
    assert refused(strict, 400)[1] == "temperature"


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_come_back_under_the_names_that_their_tools_were_declared_with(
    stream: bool,
) -> None:
    declared = [
        {"type": "custom", "name": "exec"},
        {"type": "namespace", "name": "notes", "description": "Notes.", "tools": [LOOK]},
    ]
    backend = ScriptedBackend(
        (
            ToolCall("call_a", "exec", '{"input":"print(1)"}'),
            ToolCall("call_b", "notes__look", "{}", 1),
            TurnEnd(),
        )
    )
    async with served(backend) as here:
        response = await respond(here, tools=declared, stream=stream)
    custom, named = response["output"]
    assert (custom["type"], custom["name"], custom["input"]) == (
        "custom_tool_call",
        "exec",
        "print(1)",
    )
    assert (named["type"], named["name"], named["namespace"]) == ("function_call", "look", "notes")


@pytest.mark.parametrize("stream", [True, False])
async def test_sealed_reasoning_is_shown_to_who_asks_for_it(stream: bool) -> None:
    async with served(ScriptedBackend(THOUGHT)) as here:
        shown = await respond(here, include=["reasoning.encrypted_content"], stream=stream)
        plain = await respond(here, stream=stream)
    assert shown["output"][0]["encrypted_content"] == "sealed-1"
    assert "encrypted_content" not in plain["output"][0]
    assert shown["output"][0]["summary"] == plain["output"][0]["summary"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_repeats_what_it_was_asked_with(shared: Served, stream: bool) -> None:
    more = {"metadata": {"colour": "plum"}, "instructions": "Be kind.", "user": "u-1"}
    response = await respond(shared, **more, stream=stream)
    assert {name: response[name] for name in more} == more


# -- the log and the counters ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_one_line_and_one_count(stream: bool) -> None:
    async with served(ScriptedBackend(CALLS)) as here:
        await respond(here, "xyzzy", tools=[LOOK], stream=stream, headers={"x-request-id": "r-1"})
        (line,) = await here.until_logged()
        mode = "stream" if stream else "json"
        labels = f'{{mode="{mode}",route="{RESPONSES}",status="200"}}'
        assert here.metric(f"proxy_requests_total{labels}") == 1
        assert here.metric('proxy_tool_calls_total{origin="structured"}') == 2
        assert "xyzzy" not in here.log.getvalue()
    told = {
        "path": RESPONSES,
        "request_id": "r-1",
        "stream": stream,
        "finish_reason": "tool_calls",
        "tool_call_ids": ["call_a", "call_b"],
        "prompt_tokens": 120,
        "completion_tokens": 33,
        "messages": 1,
        "tools": 1,
    }
    assert {name: line[name] for name in told} == told
