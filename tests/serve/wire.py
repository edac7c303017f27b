"""HTTP as bytes on a socket, and streams read as a client reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import trio
from attrs import frozen

from pipeline.loose_json import Json, as_json
from tests.serve.scripted import SOON, Served, body

DONE = "[DONE]"


@frozen
class Answer:
    """One response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Json:
        return as_json(msgspec.json.decode(self.body))


class Wire:
    """One connection, on which bytes are written and responses are read."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._left = b""

    async def write(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read_until(self, end: bytes) -> bytes:
        """Everything up to and with some bytes."""
        data = self._left
        with trio.fail_after(SOON):
            while end not in data:
                more = await self.stream.receive_some()
                if not more:
                    raise EOFError(data)
                data += more
        found, _, self._left = data.partition(end)
        return found + end

    async def read(self, *, method: str = "GET") -> Answer:
        """One whole response; EOFError when the connection ends before it."""
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        reader.send(h11.EndOfMessage())
        if self._left:
            reader.receive_data(self._left)
            self._left = b""
        head: h11.Response | None = None
        data = b""
        with trio.fail_after(SOON):
            while True:
                match reader.next_event():
                    case h11.NEED_DATA:
                        more = await self.stream.receive_some()
                        if not more and head is None:
                            raise EOFError
                        reader.receive_data(more)
                    case h11.Response() as head:
                        pass
                    case h11.Data() as piece:
                        data += bytes(piece.data)
                    case h11.EndOfMessage():
                        break
                    case _:
                        pass
        assert head is not None
        self._left = reader.trailing_data[0]
        headers = {name.decode(): value.decode() for name, value in head.headers}
        return Answer(head.status_code, headers, data)

    async def ended(self) -> bool:
        """Whether the server hangs up, soon."""
        with trio.fail_after(SOON):
            while True:
                try:
                    if not await self.stream.receive_some():
                        return True
                except trio.BrokenResourceError:
                    return True


@asynccontextmanager
async def wire(served: Served) -> AsyncGenerator[Wire]:
    async with await trio.open_tcp_stream("127.0.0.1", served.port) as stream:
        yield Wire(stream)


def post(content: Any = None, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """A POST as bytes; what is not bytes is sent as JSON."""
    data = content if isinstance(content, bytes) else msgspec.json.encode(content or body())
    return request("POST", path, *headers, f"Content-Length: {len(data)}") + data


def request(method: str, path: str, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin1")


# -- streams ---------------------------------------------------------------------------------------


def frames(text: str) -> list[str]:
    """The events of a stream: the data of each, or the comment with its colon."""
    assert text.endswith("\n\n"), text
    out: list[str] = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in event
        out.append(event.removeprefix("data: "))
    return out


def chunks(text: str) -> list[Json]:
    """The JSON objects of a stream, in order."""
    found = [frame for frame in frames(text) if frame != DONE and not frame.startswith(":")]
    return [as_json(msgspec.json.decode(frame)) for frame in found]


def folded(parts: Sequence[Json]) -> dict[int, dict[str, Any]]:
    """The messages that a client makes of a stream, by the index of their choice."""
    messages: dict[int, dict[str, Any]] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        message = messages.setdefault(choice["index"], {"content": None, "finish_reason": None})
        for key, value in choice["delta"].items():
            _add(message, key, value)
        if choice["finish_reason"] is not None:
            assert message["finish_reason"] is None, "finished twice"
            message["finish_reason"] = choice["finish_reason"]
    return messages


def _add(message: dict[str, Any], key: str, value: Any) -> None:
    if key == "tool_calls":
        calls = message.setdefault("tool_calls", [])
        for one in value:
            assert one["index"] == len(calls)
            calls.append({name: inner for name, inner in one.items() if name != "index"})
    elif key == "role" or not isinstance(value, str):
        message[key] = value
    else:
        message[key] = (message.get(key) or "") + value
