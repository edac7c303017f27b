"""A WebSocket that is taken from in bursts, against one of trio-websocket's own servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket
from wsproto.frame_protocol import FrameProtocol, Opcode

from sources.app_server.transport.bursting import BurstingConnection

LONGEST = 1000
Talk = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def connected(talk: Talk) -> AsyncGenerator[BurstingConnection]:
    """A client of a server that speaks raw bytes once the handshake is over."""

    async def serve(request: WebSocketRequest) -> None:
        server = await request.accept()
        await talk(server._stream)  # type: ignore[arg-type]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]

    async with trio.open_nursery() as nursery:
        listening = await nursery.start(
            partial(serve_websocket, serve, "127.0.0.1", 0, None, disconnect_timeout=0.01)
        )
        stream = await trio.open_tcp_stream("127.0.0.1", listening.port)
        connection = BurstingConnection(stream, "127.0.0.1", "/", [], LONGEST)
        with trio.fail_after(10):
            await connection.open(nursery)
            yield connection
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


def frame(text: str | bytes, *, last: bool = True, first: bool = True) -> bytes:
    opcode = Opcode.TEXT if isinstance(text, str) else Opcode.BINARY
    payload = text.encode() if isinstance(text, str) else text
    protocol = FrameProtocol(client=False, extensions=[])
    kind = opcode if first else Opcode.CONTINUATION
    return bytes(protocol._serialize_frame(kind, payload, fin=last))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def says(*pieces: bytes) -> Talk:
    async def talk(stream: trio.SocketStream) -> None:
        for piece in pieces:
            await stream.send_all(piece)
        await trio.sleep_forever()

    return talk


async def take(connection: BurstingConnection, count: int) -> list[bytes]:
    taken: list[bytes] = []
    while len(taken) < count:
        taken += await connection.take()
    return taken


async def test_what_one_write_holds_is_taken_at_once() -> None:
    words = [f"word {number}" for number in range(50)]
    async with connected(says(b"".join(map(frame, words)))) as connection:
        assert await connection.take() == [word.encode() for word in words]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_messages_are_the_same_whatever_pieces_they_come_in(size: int) -> None:
    words = ["", "a", "ö", "x" * 200, "🌍"]
    data = b"".join(map(frame, words))
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    async with connected(says(*pieces)) as connection:
        assert await take(connection, len(words)) == [word.encode() for word in words]


async def test_a_message_in_fragments_is_one() -> None:
    data = frame("Hel", last=False) + frame("l", last=False, first=False) + frame("o", first=False)
    async with connected(says(data + frame("next"))) as connection:
        assert await take(connection, 2) == [b"Hello", b"next"]


async def test_bytes_are_messages_too() -> None:
    async with connected(says(frame(b"\x00\xff"))) as connection:
        assert await connection.take() == [b"\x00\xff"]


@pytest.mark.parametrize(
    "data",
    [
        frame("x" * (LONGEST + 1)),
        frame("x" * LONGEST, last=False) + frame("y", first=False),
    ],
    ids=["at once", "in fragments"],
)
async def test_a_message_over_the_limit_ends_the_connection(data: bytes) -> None:
    async with connected(says(frame("before") + data)) as connection:
        assert await connection.take() == [b"before"]
        with pytest.raises(ConnectionClosed) as ended:
            await connection.take()
        assert ended.value.reason is not None
        assert ended.value.reason.code == 1009


async def test_what_came_before_the_end_is_still_taken() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(frame("last words"))
        await stream.aclose()

    async with connected(talk) as connection:
        assert await connection.take() == [b"last words"]
        with pytest.raises(ConnectionClosed):
            await connection.take()
