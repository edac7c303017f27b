"""A streamed answer on the wire, line by line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from pipeline.errors import Failure, ProxyError
from pipeline.events import Failed, ReasoningDelta, TextDelta, TurnEnd
from pipeline.stage import Incoming
from pipeline.turn import Turn
from tests.serve.scripted import (
    BROKEN,
    FAILS,
    HELLO,
    USAGE,
    Script,
    ScriptedBackend,
    Served,
    Step,
    body,
    call,
    served,
    tools,
)
from tests.serve.wire import DONE, chunks, folded, frames, post, wire

CALLS: Script = (TextDelta("Looking."), call("a"), call("b", 1), USAGE, TurnEnd())
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-proxy-output-mode": "auto",
    "x-codex-stop-after-tools-mode": "burst",
}
TELEMETRY = ': {"tool_call_count":2,"tool_call_truncated":false,"stop_after_tools_mode":"burst"}'


async def test_a_stream_is_role_text_finish_done(shared: Served) -> None:
    answer = await shared.ask(stream=True)
    assert answer.status_code == 200
    assert {name: answer.headers[name] for name in STREAM_HEADERS} == STREAM_HEADERS
    assert "content-length" not in answer.headers
    parts = chunks(answer.text)
    assert [
        (part["choices"][0]["delta"], part["choices"][0]["finish_reason"]) for part in parts
    ] == [
        ({"role": "assistant"}, None),
        ({"content": "Hello"}, None),
        ({"content": ", world"}, None),
        ({}, "stop"),
    ]
    assert frames(answer.text)[-1] == DONE
    assert not any(frame.startswith(":") for frame in frames(answer.text))


@pytest.mark.parametrize("more", [{}, {"tool_choice": "none"}], ids=["auto", "none"])
async def test_a_stream_with_tools_and_no_call_tells_so(
    shared: Served, more: dict[str, str]
) -> None:
    answer = await shared.ask(stream=True, tools=tools("look"), **more)
    *_, finish, comment, done = frames(answer.text)
    assert msgspec.json.decode(finish)["choices"][0]["finish_reason"] == "stop"
    assert comment == TELEMETRY.replace("2", "0")
    assert done == DONE


async def test_every_chunk_has_the_same_name_time_and_model(shared: Served) -> None:
    parts = chunks((await shared.ask(stream=True, stream_options={"include_usage": True})).text)
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    ((name, _, model),) = {(part["id"], part["created"], part["model"]) for part in parts}
    assert name.startswith("chatcmpl-")
    assert model == "gpt-5"
    other = chunks((await shared.ask(stream=True)).text)
    assert other[0]["id"] != name


async def test_usage_comes_on_request_after_the_finish_and_without_choices(shared: Served) -> None:
    answer = await shared.ask(stream=True, stream_options={"include_usage": True})
    *_, finish, usage, done = frames(answer.text)
    assert msgspec.json.decode(finish)["choices"][0]["finish_reason"] == "stop"
    assert msgspec.json.decode(usage)["choices"] == []
    assert msgspec.json.decode(usage)["usage"] == {
        "prompt_tokens": 120,
        "completion_tokens": 33,
        "total_tokens": 153,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 9},
    }
    assert done == DONE
    assert "usage" not in (await shared.ask(stream=True)).text


async def test_calls_come_whole_and_a_comment_counts_them_before_usage() -> None:
    async with served(ScriptedBackend(CALLS)) as here:
        options = {"include_usage": True}
        answer = await here.ask(stream=True, tools=tools("look"), stream_options=options)
    assert answer.headers["x-proxy-output-mode"] == "openai-json"
    *_, finish, comment, usage, done = frames(answer.text)
    assert msgspec.json.decode(finish)["choices"][0]["finish_reason"] == "tool_calls"
    assert (comment, done) == (TELEMETRY, DONE)
    assert '"usage":' in usage
    deltas = [part["choices"][0]["delta"] for part in chunks(answer.text)[:-1]]
    assert [delta["tool_calls"] for delta in deltas if "tool_calls" in delta] == [
        [
            {
                "index": index,
                "id": f"call_{letter}",
                "type": "function",
                "function": {"name": "look", "arguments": "{}"},
            }
        ]
        for index, letter in enumerate("ab")
    ]


@pytest.mark.parametrize(
    "script",
    [
        HELLO,
        CALLS,
        (call("a"), TurnEnd()),
        (TurnEnd(),),
        (ReasoningDelta("Hm."), ReasoningDelta("So.", part=1), TextDelta("42"), TurnEnd()),
        (TextDelta("Hal"), USAGE, TurnEnd("length")),
        (TextDelta("No"), TurnEnd("content_filter")),
    ],
)
async def test_a_stream_folds_to_the_answer_that_is_not_streamed(script: Script) -> None:
    async with served(ScriptedBackend(script)) as here:
        streamed = await here.ask(stream=True, tools=tools("look"))
        whole = await here.ask(tools=tools("look"))
    choice = whole.json()["choices"][0]
    message = {key: value for key, value in choice["message"].items() if key != "refusal"}
    message["content"] = message["content"] or None
    told = {**message, "finish_reason": choice["finish_reason"]}
    assert folded(chunks(streamed.text))[0] == told


async def test_an_answer_that_is_not_streamed_is_whole_and_tells_of_its_calls() -> None:
    async with served(ScriptedBackend((call("a"), USAGE, TurnEnd()))) as here:
        answer = await here.ask(tools=tools("look"), temperature=1, seed=3)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-codex-tool-call-count"] == "1"
    assert answer.headers["x-codex-tool-call-truncated"] == "false"
    assert answer.headers["x-codex-stop-after-tools-mode"] == "burst"
    assert answer.headers["x-proxy-ignored-params"] == "temperature, seed"
    told = answer.json()
    function = {"name": "look", "arguments": "{}"}
    assert told["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ]
    assert told["object"] == "chat.completion"
    assert told["usage"]["total_tokens"] == 153


async def test_usage_that_nobody_told_is_null() -> None:
    async with served(ScriptedBackend((TextDelta("Hi"), TurnEnd()))) as here:
        assert (await here.ask()).json()["usage"] is None


async def test_whoever_declares_functions_is_answered_with_a_function_call() -> None:
    async with served(ScriptedBackend((call("a"), TurnEnd()))) as here:
        whole = (await here.ask(functions=[{"name": "look"}])).json()
        streamed = chunks((await here.ask(functions=[{"name": "look"}], stream=True)).text)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "look", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    assert {"function_call": {"name": "look", "arguments": "{}"}} in [
        part["choices"][0]["delta"] for part in streamed
    ]
    assert folded(streamed)[0]["finish_reason"] == "function_call"


async def test_a_request_may_choose_to_read_calls_as_xml() -> None:
    async with served(ScriptedBackend(CALLS)) as here:
        headers = {"x-proxy-output-mode": "Obsidian-XML"}
        answer = await here.ask(tools=tools("look"), stream=True, headers=headers)
        refused = await here.ask(headers={"x-proxy-output-mode": "pdf"})
    assert answer.headers["x-proxy-output-mode"] == "obsidian-xml"
    message = folded(chunks(answer.text))[0]
    assert message["content"].count("<use_tool>\n<name>look</name>") == 2
    assert len(message["tool_calls"]) == 2
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-proxy-output-mode"


async def test_a_strict_request_is_refused_for_what_would_have_no_effect(shared: Served) -> None:
    refused = await shared.ask(temperature=1, headers={"x-proxy-strict": "1"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperature"


# -- the first moments -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_byte_has_a_status_of_its_own(stream: bool) -> None:
    async with served(ScriptedBackend(FAILS)) as here:
        answer = await here.ask(stream=stream)
        assert answer.status_code == 502
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "upstream_error"
        await here.until(lambda: here.server.admission.running == 0)


async def test_the_first_byte_does_not_wait_for_the_window_to_close() -> None:
    rest = trio.Event()
    backend = ScriptedBackend((TextDelta("Hi"), rest, TurnEnd()))
    async with served(backend, prime_window=60.0) as here, wire(here) as connection:
        await connection.write(post(body(stream=True)))
        assert b": ping" not in await connection.read_until(b'{"content":"Hi"}')
        rest.set()
        await connection.read_until(b"[DONE]\n\n")


async def test_a_failure_after_the_window_is_told_in_the_stream() -> None:
    fail = trio.Event()
    backend = ScriptedBackend((fail, *FAILS))
    async with served(backend, prime_window=0.01) as here, wire(here) as connection:
        await connection.write(post(body(stream=True)))
        head = await connection.read_until(b": ping\n\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        fail.set()
        rest = await connection.read_until(b"[DONE]\n\n")
        assert b'data: {"error":{"message":"the upstream is down"' in rest
        assert b'"role"' not in rest
        (line,) = await here.until_logged()
        assert (line["status"], line["error_code"]) == (200, "upstream_error")


async def test_a_failure_after_text_is_told_and_nothing_else_follows() -> None:
    async with served(ScriptedBackend((TextDelta("Hel"), *FAILS))) as here:
        answer = await here.ask(stream=True)
        assert frames(answer.text)[-2:] == [msgspec.json.encode(BROKEN.body()).decode(), DONE]
        assert '"finish_reason":"' not in answer.text
        await here.until_logged()
        assert here.metric('proxy_errors_total{code="upstream_error"}') == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_after_a_call_is_for_the_operator_alone(stream: bool) -> None:
    script: Script = (call("a"), Failed(BROKEN), TurnEnd("failed"))
    async with served(ScriptedBackend(script), stop_after_tools=False) as here:
        answer = await here.ask(stream=stream, tools=tools("look"))
        assert answer.status_code == 200
        assert "error" not in answer.text
        if stream:
            assert folded(chunks(answer.text))[0]["finish_reason"] == "tool_calls"
            assert frames(answer.text)[-1] == DONE
        (line,) = await here.until_logged()
        assert line["error_after_calls"] == "upstream_error"
        assert here.metric('proxy_errors_total{code="upstream_error"}') == 1


async def test_silence_is_filled_with_pings_and_talk_is_not() -> None:
    talk, rest = trio.Event(), trio.Event()
    backend = ScriptedBackend((talk, TextDelta("a"), rest, TextDelta("b"), TurnEnd()))
    flags = {"prime_window": 0.0, "ping_interval": 0.05}
    async with served(backend, **flags) as here, wire(here) as connection:
        await connection.write(post(body(stream=True)))
        began = trio.current_time()
        for _ in range(4):
            await connection.read_until(b": ping\n\n")
        assert 0.14 <= trio.current_time() - began < 2
        talk.set()
        await connection.read_until(b'{"content":"a"}')
        await connection.read_until(b": ping\n\n")
        rest.set()
        assert b": ping" not in await connection.read_until(b"[DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_backend_that_refuses_a_turn_is_heard(stream: bool) -> None:
    busy = Failure("no backend", status=503, code="server_is_overloaded", retry_after=2.5)
    async with served(ScriptedBackend((ProxyError(busy),))) as here:
        answer = await here.ask(stream=stream)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert answer.json() == busy.body()


async def test_a_spent_quota_is_not_asked_for_again() -> None:
    spent = Failure("spent", status=429, type="insufficient_quota", code="insufficient_quota")
    async with served(ScriptedBackend((ProxyError(spent),))) as here:
        assert (await here.ask()).headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bug_is_a_500_that_tells_nothing_and_the_server_goes_on(stream: bool) -> None:
    turns = [(ValueError("a secret of ours"),), HELLO]
    async with served(ScriptedBackend(lambda _: turns.pop(0))) as here:
        answer = await here.ask(stream=stream)
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["code"] == "internal_error"
        assert error["message"].endswith(f"request id {answer.headers['x-request-id']}")
        assert answer.headers["x-should-retry"] == "false"
        assert "secret" not in answer.text
        assert "a secret of ours" in here.log.getvalue()
        assert (await here.ask(stream=stream)).status_code == 200
        assert here.server.admission.running == 0


class Crashes(ScriptedBackend):
    """A source with a task of its own, which breaks."""

    def __init__(self, *script: Step) -> None:
        super().__init__((*script, trio.Event()))
        self.go = trio.Event()

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        async with super().open(turn) as incoming, trio.open_nursery() as nursery:
            nursery.start_soon(self._crash)
            yield incoming

    async def _crash(self) -> None:
        await self.go.wait()
        raise ValueError("a secret of ours")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bug_in_a_task_of_the_source_is_a_500_too(stream: bool) -> None:
    backend = Crashes()
    backend.go.set()
    async with served(backend) as here:
        answer = await here.ask(stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert answer.headers["x-request-id"] in answer.text
        assert "a secret of ours" in str(here.lines("a request broke"))
        (line,) = await here.until_logged()
        assert (line["status"], line["error_code"]) == (500, "internal_error")
        assert here.server.admission.running == 0


async def test_a_bug_in_a_task_of_the_source_cuts_a_stream_that_has_begun() -> None:
    backend = Crashes(TextDelta("Hi"))
    async with served(backend) as here, wire(here) as connection:
        await connection.write(post(body(stream=True)))
        await connection.read_until(b'"Hi"')
        backend.go.set()
        assert await connection.ended()
        assert here.log.getvalue().count("ValueError: a secret of ours") == 1
        (line,) = await here.until_logged()
        assert (line["status"], line["error_code"]) == (200, "internal_error")
        assert here.server.admission.running == 0


@pytest.mark.parametrize("said", ["", "Hel"])
async def test_a_bug_after_the_head_of_a_stream_ends_it_properly(said: str) -> None:
    silence = trio.Event()
    first: Script = (TextDelta(said),) if said else ()
    backend = ScriptedBackend((*first, silence, ValueError("oops")))
    async with served(backend, prime_window=0.01) as here, wire(here) as connection:
        await connection.write(post(body(stream=True)))
        await connection.read_until(b'"Hel"' if said else b": ping\n\n")
        silence.set()
        rest = await connection.read_until(b"data: [DONE]\n\n")
        assert rest.count(b'"code":"internal_error"') == 1
        (line,) = await here.until_logged()
        assert (line["status"], line["error_code"]) == (200, "internal_error")
        assert line["request_id"] in rest.decode()
        assert len(here.lines("a stream broke")) == 1
