"""A Responses backend that speaks in bytes, and what is heard of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import trio

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure
from pipeline.events import Event, Failed, TextDelta, TurnEnd
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.app_server.turn.place import Bounds
from sources.responses_api import ResponsesApiSource
from sources.responses_request import ResponsesApi

Talk: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]

KEY = "sk-secret-0123456789"
TURN = Turn(
    items=({"type": "message", "role": "user", "content": "hello"},),
    tools=(Tool("readNote"), Tool("localSearch")),
)
STREAM = "content-type: text/event-stream\r\n"


@asynccontextmanager
async def backend(talk: Talk) -> AsyncGenerator[str]:
    """Answers every request by `talk`, once all of it has been read; then closes."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await request_on(stream)
            await talk(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def request_on(stream: trio.SocketStream) -> bytes:
    """The next request, all of it; nothing if none comes."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line[16:]) for line in lines if line.startswith(b"content-l")), 0)
    while len(body) < length:
        body += await stream.receive_some()
    return data


def http(body: bytes = b"", status: str = "200 OK", headers: str = STREAM) -> bytes:
    """An answer that ends with its connection."""
    return f"HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n".encode() + body


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    head = f"HTTP/1.1 200 OK\r\n{STREAM}transfer-encoding: chunked\r\n\r\n".encode()
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + (b"0\r\n\r\n" if end else b"")


def says(answer: bytes) -> Talk:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(answer)

    return talk


def sse(kind: str, **fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"type": f"response.{kind}", **fields}).encode()


def delta(words: str) -> bytes:
    return sse("output_text.delta", delta=words)


COMPLETED = sse("completed", response={"id": "resp_1"})


def words(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def hear(talk: Talk, bounds: Bounds | None = None) -> list[Event]:
    """What comes out at the end of the whole recipe."""
    async with backend(talk) as url:
        source = ResponsesApiSource(ResponsesApi(url, KEY, bounds or Bounds()))
        with trio.fail_after(30):
            return await recipe(Settings()).run(source, Collect(), TURN)


def failure_in(events: list[Event]) -> Failure:
    *_, failed, end = events
    assert isinstance(failed, Failed)
    assert isinstance(end, TurnEnd)
    return failed.error
