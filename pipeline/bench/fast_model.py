"""A model with the Responses API and almost no CPU cost, for the real Codex."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import trio

from pipeline.bench.request import LoadRequest

READ: Final = 65_536
AT_ONCE: Final = 200
"""The number of deltas in one write."""
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
_ITEM: Final = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress"}


def _event(kind: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _delta(words: object) -> bytes:
    return _event("response.output_text.delta", item_id="msg_1", delta=f"{words} ")


async def _answer(stream: trio.SocketStream) -> None:
    """Read one request, and send the deltas that its last message requests."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    while len(body) < (int(length[1]) if length else 0):
        body += await _more(stream)
    if not head.split(b" ", 2)[1].endswith(b"/responses"):
        await stream.send_all(_NOT_FOUND)
        return
    request = _requested(msgspec.json.decode(body))
    await stream.send_all(_HEAD + b"".join(_begin()))
    if request.gap:
        due = trio.current_time() + request.after
        await trio.sleep_until(due)
        for _ in range(request.deltas):
            await stream.send_all(_delta(time.monotonic_ns()))
            due += request.gap
            await trio.sleep_until(due)
    else:
        for start in range(0, request.deltas, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, request.deltas))
            await stream.send_all(b"".join(map(_delta, numbers)))
    await stream.send_all(b"".join(_end(request)))


async def _more(stream: trio.SocketStream) -> bytes:
    data = bytes(await stream.receive_some(READ))
    if not data:
        raise ConnectionError("the client left")
    return data


def _requested(body: Any) -> LoadRequest:
    """The load in the last user message."""
    for item in reversed(body.get("input", [])):
        if item.get("role") == "user":
            return LoadRequest.read("".join(part.get("text", "") for part in item["content"]))
    return LoadRequest()


def _begin() -> Iterator[bytes]:
    yield _event("response.created", response={"id": "resp_1"})
    yield _event("response.output_item.added", output_index=0, item={**_ITEM, "content": []})


def _end(request: LoadRequest) -> Iterator[bytes]:
    words = [{"type": "output_text", "text": f"{request.deltas} words"}]
    done = {**_ITEM, "status": "completed", "content": words}
    usage = {"input_tokens": 1, "output_tokens": request.deltas, "total_tokens": request.deltas + 1}
    yield _event("response.output_item.done", output_index=0, item=done)
    yield _event("response.completed", response={"id": "resp_1", "usage": usage})


async def _serve(stream: trio.SocketStream) -> None:
    try:
        async with stream:
            await _answer(stream)
    except (OSError, trio.BrokenResourceError):
        return  # the client disconnected


async def main() -> None:
    """Serve on a free port of loopback, and print the address."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1", flush=True)
    await trio.serve_listeners(_serve, [listener])


if __name__ == "__main__":
    sys.exit(trio.run(main))
