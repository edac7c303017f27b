"""What a scripted model cannot do, done by a server that speaks in bytes."""

from __future__ import annotations

import gzip
import json
import socket
from contextlib import suppress

import pytest
import trio

from pipeline.events import ToolCall, TurnEnd
from pipeline.recipe import Pipeline
from sinks.collect import Collect
from sources.responses_api import MOST_OF_AN_ERROR, ResponsesApiSource
from sources.responses_request import ResponsesApi
from tests.support.raw_http import (
    COMPLETED,
    STREAM,
    TURN,
    backend,
    chunked,
    delta,
    failure_in,
    hear,
    http,
    says,
    sse,
    words,
)

# -- the stream in all its forms -------------------------------------------------------------------


async def test_bytes_one_by_one_are_the_same_answer() -> None:
    answer = http(delta("Grüße ") + delta("🌍") + COMPLETED)

    async def talk(stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(answer)):
            await stream.send_all(answer[at : at + 1])
            await trio.lowlevel.checkpoint()

    events = await hear(talk)
    assert words(events) == "Grüße 🌍"
    assert isinstance(events[-1], TurnEnd)
    assert events[-1].reason == "completed"


async def test_crlf_comments_and_data_over_several_lines_are_understood() -> None:
    body = (
        b": OPENROUTER PROCESSING\r\n\r\nevent: response.output_text.delta\r\nid: 1\r\nretry: 5\r\n"
        b'data: {"type":\r\ndata: "response.output_text.delta",\r\ndata:"delta": "hi"}\r\n\r\n'
        b": ping\r\n\r\ndata: [DONE]\r\n\r\n"
    )
    events = await hear(says(http(body)))
    assert words(events) == "hi"
    assert events[-1] == TurnEnd("completed", at=events[-1].at)


async def test_names_and_ids_are_found_in_all_the_places_where_backends_put_them() -> None:
    parts = [
        {"type": "tool_use", "call_id": "c1", "tool_name": "localSearch", "input": {"q": 1}},
        {"type": "tool_call", "function": {"id": "c2", "name": "readNote", "arguments": "{}"}},
    ]
    item = {"type": "message", "id": "m", "role": "assistant", "content": parts}
    begun = {"type": "function", "function_name": "localSearch", "call_id": "c3"}
    body = sse("output_item.done", item=item)
    body += sse("content_part.added", item_id="f", part=begun)
    body += sse("function_call_arguments.delta", item_id="f", delta='{"a": ')
    body += sse("function_call_arguments.delta", item_id="f", delta="1.0}")
    body += sse("function_call_arguments.done", item_id="f", arguments='{"a": 1.0}')
    calls = [e for e in await hear(says(http(body + COMPLETED))) if isinstance(e, ToolCall)]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        ("c1", "localSearch", '{"q":1}'),
        ("c2", "readNote", "{}"),
        ("c3", "localSearch", '{"a": 1.0}'),
    ]


async def test_an_answer_in_one_json_body_is_an_answer() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    body = json.dumps({"object": "response", "status": "completed", "output": [item]}).encode()
    events = await hear(says(http(body, headers="content-type: application/json\r\n")))
    assert words(events) == "hi"
    assert events[-1] == TurnEnd("completed", at=events[-1].at)


async def test_a_web_page_is_a_502_that_says_so_though_it_never_ends() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(b"<html>Welcome", headers="content-type: text/html\r\n"))
        await trio.sleep_forever()

    failure = failure_in(await hear(talk))
    assert (failure.status, failure.code) == (502, "upstream_error")
    assert "not the Responses API" in failure.message


async def test_a_huge_message_arrives_whole() -> None:
    huge = "x" * 3_000_000
    assert words(await hear(says(http(delta(huge) + COMPLETED)))) == huge


async def test_after_the_end_nothing_more_is_waited_for() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(delta("done") + COMPLETED))
        await trio.sleep_forever()

    async with backend(talk) as url:
        source = ResponsesApiSource(ResponsesApi(url))
        with trio.fail_after(30):
            assert words(await Pipeline().run(source, Collect(), TURN)) == "done"


# -- a stream that breaks off ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        http(delta("half")),
        http(delta("half") + b'data: {"type": "response.comp'),
        chunked(delta("half"), end=False),
        chunked(delta("half"), end=False) + b"ff\r\nda",
    ],
    ids=["at the end of a message", "in a message", "between chunks", "in a chunk"],
)
async def test_a_stream_that_breaks_off_is_the_guards_to_judge(answer: bytes) -> None:
    events = await hear(says(answer))
    assert words(events) == "half"
    assert failure_in(events).code == "stream_ended_early"


async def test_an_end_that_was_all_but_finished_counts() -> None:
    events = await hear(says(http(delta("whole") + COMPLETED.strip())))
    assert events[-1] == TurnEnd("completed", at=events[-1].at)


async def test_a_json_body_that_breaks_off_is_not_called_a_wrong_address() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        headers = "content-type: application/json\r\ncontent-length: 1000\r\n"
        await stream.send_all(http(b'{"output": [', headers=headers))

    assert failure_in(await hear(talk)).code == "stream_ended_early"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"220 mail.example ESMTP\r\n\r\n"])
async def test_a_backend_that_hangs_up_or_speaks_no_http_is_a_502(answer: bytes) -> None:
    failure = failure_in(await hear(says(answer)))
    assert (failure.status, failure.code) == (502, "upstream_error")
    assert "did not answer" in failure.message


@pytest.mark.parametrize("packing", ["gzip", "br"])
async def test_a_body_that_cannot_be_unpacked_is_a_502(packing: str) -> None:
    packed = http(b"not packed", headers=f"{STREAM}content-encoding: {packing}\r\n")
    failure = failure_in(await hear(says(packed)))
    assert (failure.status, failure.code) == (502, "upstream_error")
    assert packing in failure.message


async def test_a_body_that_is_packed_unasked_is_unpacked() -> None:
    packed = gzip.compress(delta("small") + COMPLETED)
    events = await hear(says(http(packed, headers=f"{STREAM}content-encoding: gzip\r\n")))
    assert words(events) == "small"


# -- refusals --------------------------------------------------------------------------------------


async def test_who_is_to_come_back_later_is_told_when() -> None:
    body = b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}'
    answer = http(body, "429 Too Many Requests", "Retry-After: 7\r\n")
    failure = failure_in(await hear(says(answer)))
    assert (failure.status, failure.code, failure.retry_after) == (429, "rate_limit_exceeded", 7.0)
    assert failure.message == "slow down"


async def test_a_refusal_whose_body_breaks_off_keeps_its_status() -> None:
    answer = http(b"busy", "503 Service Unavailable", "content-length: 999\r\nretry-after: 2\r\n")
    failure = failure_in(await hear(says(answer)))
    assert (failure.status, failure.code, failure.retry_after) == (503, "server_is_overloaded", 2.0)


async def test_an_endless_refusal_is_not_read_to_its_end() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(status="500 Internal Server Error"))
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"x" * MOST_OF_AN_ERROR)

    assert failure_in(await hear(talk)).status == 500


async def test_a_redirection_is_not_followed() -> None:
    answer = http(status="307 Temporary Redirect", headers="location: http://127.0.0.1:1/v1\r\n")
    failure = failure_in(await hear(says(answer)))
    assert failure.status == 502
    assert "http://127.0.0.1:1/v1" in failure.message
