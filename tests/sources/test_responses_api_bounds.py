"""How bursts come about, how long is waited, how a client leaves, and where the key goes."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from pipeline.errors import Failure
from pipeline.events import Burst, Event
from pipeline.stage import Incoming
from sources.app_server.turn.place import Bounds
from sources.responses_api import MOST_UNREAD, ResponsesApiSource, open_client
from sources.responses_request import ResponsesApi
from tests.support.raw_http import (
    COMPLETED,
    KEY,
    TURN,
    Talk,
    backend,
    chunked,
    delta,
    failure_in,
    hear,
    http,
    request_on,
    says,
    sse,
    words,
)


async def bursts_of(url: str, began: Callable[[], None] = lambda: None) -> list[Burst]:
    """What is received of a turn, burst by burst; `began` is called after each."""
    bursts: list[Burst] = []
    with trio.fail_after(30), suppress(trio.EndOfChannel):
        async with ResponsesApiSource(ResponsesApi(url, KEY)).open(TURN) as incoming:
            while True:
                bursts.append(await incoming.receive())
                began()
    return bursts


# -- bursts --------------------------------------------------------------------------------------


async def test_what_one_read_brought_goes_on_as_one_burst() -> None:
    answer = chunked(*[delta(str(number)) for number in range(100)], COMPLETED)
    async with backend(says(answer)) as url:
        bursts = await bursts_of(url)
    assert words(bursts[0]).startswith("0123456789")
    assert len(bursts) <= 2  # the kernel may split what was sent at once


async def test_what_comes_late_is_not_waited_for() -> None:
    told = trio.Event()

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(delta("first")))
        await told.wait()
        await stream.send_all(COMPLETED)

    async with backend(talk) as url:
        bursts = await bursts_of(url, told.set)
    assert [words(burst) for burst in bursts] == ["first", ""]


# -- time ------------------------------------------------------------------------------------------


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def headers_only(stream: trio.SocketStream) -> None:
    await stream.send_all(http())
    await trio.sleep_forever()


async def one_word(stream: trio.SocketStream) -> None:
    await stream.send_all(http(delta("one")))
    await trio.sleep_forever()


async def half_a_refusal(stream: trio.SocketStream) -> None:
    await stream.send_all(http(b"{", "500 Internal Server Error"))
    await trio.sleep_forever()


async def chatter(stream: trio.SocketStream) -> None:
    await stream.send_all(http())
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(delta("x"))
            await trio.sleep(0.02)


@pytest.mark.parametrize(
    ("talk", "bounds"),
    [
        (silent, Bounds(first_event=0.1)),
        (headers_only, Bounds(first_event=0.1)),
        (half_a_refusal, Bounds(first_event=0.1)),
        (one_word, Bounds(first_event=5, idle=0.1)),
        (chatter, Bounds(total=0.1)),
    ],
)
async def test_every_wait_has_its_bound(talk: Talk, bounds: Bounds) -> None:
    failure = failure_in(await hear(talk, bounds))
    assert (failure.status, failure.code) == (504, "timeout")
    assert "0.1 s" in failure.message


async def test_a_comment_is_a_sign_of_life() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http())
        for _ in range(8):
            await trio.sleep(0.05)
            await stream.send_all(b": ping\n\n")
        await stream.send_all(delta("at last") + COMPLETED)

    assert words(await hear(talk, Bounds(first_event=0.3))) == "at last"


async def test_what_waits_for_a_slow_client_keeps_the_time_at_which_it_came() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(http(delta("a")))
        await trio.sleep(0.1)
        await stream.send_all(delta("b") + delta("c"))
        await trio.sleep_forever()

    async with backend(talk) as url, ResponsesApiSource(ResponsesApi(url)).open(TURN) as incoming:
        await trio.sleep(0.3)
        _, a, b, c = await incoming.receive()
    assert (words([a]), words([b, c])) == ("a", "bc")
    assert b.at - a.at > 0.05
    assert b.at == c.at


# -- a client that is slow, or leaves --------------------------------------------------------------


async def flood(stream: trio.SocketStream) -> None:
    await stream.send_all(http())
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(delta("x" * 100) * 1000)


async def read_slowly(incoming: Incoming) -> list[Event]:
    events: list[Event] = []
    with trio.move_on_after(5), suppress(trio.EndOfChannel):
        while True:
            events += await incoming.receive()
            await trio.sleep(0.01)
    return events


async def test_a_failure_from_outside_is_not_held_up_by_a_backend_that_goes_on() -> None:
    failure = Failure("shutting down", status=503)
    async with backend(flood) as url, ResponsesApiSource(ResponsesApi(url)).open(TURN) as incoming:
        await incoming.receive()
        await trio.sleep(0.1)
        incoming.fail(failure)
        events = await read_slowly(incoming)
    assert failure_in(events) == failure


async def test_the_whole_time_of_a_turn_is_bounded_though_there_is_always_more_to_read() -> None:
    async with backend(flood) as url:
        source = ResponsesApiSource(ResponsesApi(url, bounds=Bounds(total=0.3)))
        async with source.open(TURN) as incoming:
            events = await read_slowly(incoming)
    assert failure_in(events).status == 504


@pytest.mark.parametrize("shared", [False, True])
async def test_a_slow_client_stops_the_backend_and_may_still_leave(shared: bool) -> None:
    """Left in the middle, httpx's generators must not fall to the garbage collector."""
    sent = 0
    gone = trio.Event()

    async def talk(stream: trio.SocketStream) -> None:
        nonlocal sent
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        await stream.send_all(http())
        try:
            while True:
                await stream.send_all(delta("x" * 1000))
                sent += 1000
        except trio.BrokenResourceError:
            gone.set()

    async with backend(talk) as url, open_client() as client:
        source = ResponsesApiSource(ResponsesApi(url), client if shared else None)
        with trio.fail_after(30):
            async with source.open(TURN):  # and nothing is received
                await trio.testing.wait_all_tasks_blocked(0.1)
                assert MOST_UNREAD < sent < 20_000_000
            await gone.wait()
    gc.collect()


# -- the key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        http(f'{{"error": {{"message": "no such key: {KEY}"}}}}'.encode(), "401 Unauthorized"),
        http(b"x" * 90 + KEY.encode(), "500 Internal Server Error", ""),
        http(f"you sent Authorization: Bearer {KEY}".encode()),
        http(b"x" * 90 + KEY.encode()),
        http(sse("failed", response={"error": {"code": "x", "message": f"bad {KEY}"}})),
    ],
)
async def test_the_key_is_in_no_message_and_no_log(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failure = failure_in(await hear(says(answer)))
    assert "…" in failure.message
    assert KEY[:10] not in failure.message
    assert KEY[:10] not in caplog.text


async def test_the_key_is_in_its_header() -> None:
    heads: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        heads.append(await request_on(stream))
        await stream.send_all(http(COMPLETED))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await bursts_of(url)
        nursery.cancel_scope.cancel()
    head, _, body = heads[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/responses HTTP/1.1\r\n")
    assert f"\r\nauthorization: Bearer {KEY}\r\n".encode() in head
    assert KEY.encode() not in body
