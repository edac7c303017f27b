"""A WebSocket whose client leaves, or does not read, while its answer is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import trio

from pipeline.events import TextDelta, TurnEnd
from tests.serve.scripted import SOON, ScriptedBackend, Served, served
from tests.serve.test_respond import LARGE, DeliveringBackend
from tests.serve.test_websocket import HANDSHAKE
from tests.serve.wire import Wire, request, wire

ASKS = {"type": "response.create", "model": "gpt-5", "input": "Hi", "store": False}


def framed(text: bytes) -> bytes:
    """A short message of a client, masked with zeros."""
    return bytes([0x81, 0x80 | len(text)]) + b"\0\0\0\0" + text


@asynccontextmanager
async def asking(here: Served) -> AsyncGenerator[Wire]:
    """A client that has asked and reads when it wants to."""
    async with wire(here) as connection:
        headers = [f"{name}: {value}" for name, value in HANDSHAKE.items()]
        await connection.write(request("GET", "/v1/responses", *headers))
        await connection.read_until(b"\r\n\r\n")
        await connection.write(framed(msgspec.json.encode(ASKS)))
        yield connection


async def test_an_answer_whose_client_leaves_during_the_last_write_is_not_delivered() -> None:
    backend = DeliveringBackend(LARGE)
    async with served(backend) as here:
        async with asking(here) as connection:
            await connection.read_until(b"xxxx")
        (line,) = await here.until_logged()
    assert line["client_left"] is True
    assert backend.turn.noted == ["complete", "left"]


async def test_a_client_that_does_not_read_is_left_after_the_write_timeout() -> None:
    backend = ScriptedBackend([*[TextDelta("x" * 100_000)] * 400, TurnEnd()])
    async with served(backend, write_timeout=0.2) as here, asking(here):
        turn = await backend.until_turn()
        with trio.fail_after(SOON):
            await turn.over.wait()
    assert turn.left == "cancelled"
