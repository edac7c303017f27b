"""HTTP/1.1 on the wire: heads, chunks, and bodies that break."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import structlog
from quart import Response

from pipeline.assembly import Settings
from pipeline.events import TextDelta, TurnEnd
from pipeline.serve.observe import logs
from tests.serve.scripted import CHAT, LeavingBackend, ScriptedBackend, served
from tests.serve.wire import post, request, wire

HELLO = (TextDelta("Hi"), TurnEnd())


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", CHAT])
async def test_a_body_that_is_none_is_refused_once_and_breaks_nothing(path: str) -> None:
    async with served(ScriptedBackend(HELLO)) as here:
        async with wire(here) as client:
            await client.write(request("POST", path, "Transfer-Encoding: chunked") + b"ZZZ\r\n")
            assert (await client.read()).status == 400
            assert await client.ended()
        assert (await here.ask()).status_code == 200
    assert "Error in ASGI" not in here.log.getvalue()
    assert "broke" not in here.log.getvalue()


USER = {"role": "user", "content": "Hi"}


async def test_a_client_that_knows_no_chunks_gets_none() -> None:
    async with served(ScriptedBackend(HELLO)) as here, wire(here) as client:
        asked = post({"model": "m", "stream": True, "messages": [USER]})
        await client.write(asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.read_until(b"[DONE]\n\n")
        assert await client.ended()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert all(line.startswith(b"data: ") for line in body.splitlines() if line)


async def breaks() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "asked", [{"messages": [USER]}, {"input": "Hi"}], ids=["chat", "responses"]
)
async def test_a_stream_ends_once_though_its_turn_breaks_when_it_is_left(
    asked: dict[str, Any],
) -> None:
    """Nothing is said of the failure, and nothing must not be sent as a chunk: that is an end."""
    path = CHAT if "messages" in asked else "/v1/responses"
    async with served(LeavingBackend(HELLO, breaks)) as here, wire(here) as client:
        await client.write(post({"model": "m", "stream": True, **asked}, path=path))
        streamed = await client.read_until(b"\r\n0\r\n\r\n")
        await client.write(request("GET", "/livez"))
        assert (await client.read()).status == 200  # nothing was left in between
        (line,) = here.lines("a request broke when its answer was complete")
        assert "ZeroDivisionError" in str(line)
    assert streamed.count(b"[DONE]") == 1


async def test_a_head_is_sent_though_its_body_breaks_before_it_began() -> None:
    async with served(ScriptedBackend(HELLO)) as here:

        async def broken() -> AsyncGenerator[bytes]:
            if here.port:
                raise ValueError("oops")
            yield b""

        @here.server.get("/broken")
        async def _() -> Response:
            return Response(broken(), 200)  # pyright: ignore[reportUnknownMemberType]

        async with wire(here) as client:
            await client.write(request("GET", "/broken"))
            assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


def test_a_log_line_with_half_a_character_is_written_all_the_same() -> None:
    out = io.StringIO()
    logs.configure(Settings(log_format="json"), out)
    structlog.get_logger().info("a file", name="x\ud800")
    line = json.loads(out.getvalue())
    assert (line["event"], line["name"][0]) == ("a file", "x")
