"""Turns of one client use a connection again: it costs a round trip, or three, to open another."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from pipeline.assembly import Settings, recipe
from sinks.collect import Collect
from sources.responses_api import ResponsesApiSource, open_client
from sources.responses_request import ResponsesApi
from tests.support.raw_http import COMPLETED, KEY, TURN, backend, chunked, delta, request_on, words

ANSWER = chunked(delta("hi"), COMPLETED, end=False)
COMMENT = b"8\r\n: more\n\n\r\n"
END = b"0\r\n\r\n"


class Server:
    """Answers request after request on each connection, piece by piece, and counts both."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.connections = 0
        self.requests = 0

    async def talk(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        asked = True
        with suppress(trio.BrokenResourceError):
            while asked:
                self.requests += 1
                for piece in self._pieces:
                    await stream.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()  # the client has read it
                asked = bool(await request_on(stream))


async def ask(server: Server, times: int) -> None:
    async with backend(server.talk) as url, open_client() as client:
        for _ in range(times):
            source = ResponsesApiSource(ResponsesApi(url, KEY), client)
            with trio.fail_after(30):
                events = await recipe(Settings()).run(source, Collect(), TURN)
            assert words(events) == "hi"


@pytest.mark.parametrize("pieces", [(ANSWER + END,), (ANSWER, END), (ANSWER, COMMENT, END)])
async def test_turns_share_a_connection_though_an_answers_bytes_end_after_its_last_event(
    pieces: tuple[bytes, ...],
) -> None:
    server = Server(*pieces)
    await ask(server, 5)
    assert (server.requests, server.connections) == (5, 1)


async def test_an_answer_whose_bytes_never_end_is_not_waited_for() -> None:
    server = Server(ANSWER)
    await ask(server, 3)
    assert (server.requests, server.connections) == (3, 3)
