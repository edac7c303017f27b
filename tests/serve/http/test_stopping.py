"""The end of a server: what runs may finish, what does not is ended, and nothing holds it up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from pipeline.assembly import Settings
from pipeline.events import TextDelta, TurnEnd
from pipeline.serve.backends import CodexBackend
from pipeline.serve.http import listening
from sources.demo.chaos_child import ChaosChild
from tests.serve.scripted import SOON, Script, ScriptedBackend, Served, body, call, served, tools
from tests.serve.wire import Wire, post, request

LARGE = "x" * 20_000_000


Connect: TypeAlias = Callable[[Served], Awaitable[Wire]]


@pytest.fixture
async def connect() -> AsyncGenerator[Connect]:
    """Opens connections that outlive the server."""
    async with AsyncExitStack() as stack:

        async def opened(here: Served) -> Wire:
            stream = await trio.open_tcp_stream("127.0.0.1", here.port)
            return Wire(await stack.enter_async_context(stream))

        yield opened


async def until_deaf(here: Served) -> None:
    """Wait until no connection is taken any more."""
    with trio.fail_after(SOON):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", here.port)
            except OSError:
                return
            await stream.aclose()


async def test_a_stream_that_runs_may_finish_and_nothing_new_begins(connect: Connect) -> None:
    go = trio.Event()
    backend = ScriptedBackend((TextDelta("Hi"), go, TextDelta(" there"), TurnEnd()))

    async def finish(here: Served, connection: Wire) -> None:
        await until_deaf(here)
        assert not here.server.turns.ended
        go.set()
        rest = await connection.read_until(b"[DONE]\n\n")
        assert b'" there"' in rest
        assert b'"error"' not in rest
        assert await connection.ended()

    async with trio.open_nursery() as nursery, served(backend, shutdown_grace=60.0) as here:
        connection = await connect(here)
        await connection.write(post(body(stream=True)))
        await connection.read_until(b'"Hi"')
        nursery.start_soon(finish, here, connection)
    assert backend.turns[0].left == "ended"


async def test_a_stream_that_takes_too_long_is_ended_properly(connect: Connect) -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend, shutdown_grace=0.05) as here:
        connection = await connect(here)
        await connection.write(post(body(stream=True)))
        await connection.read_until(b'"Hi"')
    rest = await connection.read_until(b"[DONE]\n\n")
    assert b'"code":"server_is_overloaded"' in rest
    assert await connection.ended()
    assert backend.turns[0].left == "cancelled"
    assert here.lines("ending answers that take too long")
    assert not here.lines("hanging up")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_has_not_begun_is_a_503(stream: bool, connect: Connect) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, prime_window=60.0) as here:
        connection = await connect(here)
        await connection.write(post(body(stream=stream)))
        await backend.until_turn()
    answer = await connection.read()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert "shutting down" in answer.json()["error"]["message"]
    assert backend.turns[0].left == "cancelled"


async def test_a_stream_with_calls_is_finished_as_if_they_were_all(connect: Connect) -> None:
    script: Script = (call("a"), trio.Event())
    backend = ScriptedBackend(script)
    async with served(backend, stop_after_tools=False) as here:
        connection = await connect(here)
        await connection.write(post(body(stream=True, tools=tools("look"))))
        await connection.read_until(b'"call_a"')
    rest = await connection.read_until(b"[DONE]\n\n")
    assert b'"finish_reason":"tool_calls"' in rest
    assert b'"error"' not in rest


async def test_whoever_waits_in_the_queue_is_not_forgotten(connect: Connect) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, concurrency=1) as here:
        first, second = await connect(here), await connect(here)
        await first.write(post())
        await backend.until_turn()
        await second.write(post())
        await here.until(lambda: here.server.admission.waiting == 1)
    assert [(await one.read()).status for one in (first, second)] == [503, 503]


async def test_the_turn_behind_an_ended_stream_is_interrupted_once(
    tmp_path: Path, connect: Connect
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        async with served(CodexBackend(child.pool, Settings(), "fake", "")) as here:
            connection = await connect(here)
            await connection.write(post(body("HANG", stream=True)))
            await connection.read_until(b'"Wait"')
        assert b"server_is_overloaded" in await connection.read_until(b"[DONE]\n\n")
        await child.until(lambda: child.told("thread/delete"))
        assert len(child.told("turn/interrupt")) == 1


async def test_idle_connections_do_not_hold_up_the_end(connect: Connect) -> None:
    with trio.fail_after(SOON):
        async with served(shutdown_grace=60.0) as here:
            silent, idle, half = [await connect(here) for _ in range(3)]
            await idle.write(request("GET", "/livez"))
            assert (await idle.read()).status == 200
            await half.write(b"GET /livez HTTP/1.1\r\nHo")
    for connection in (silent, idle, half):
        assert await connection.ended()


async def test_a_client_that_never_reads_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(listening, "LAST_WORDS", 0.1)
    backend = ScriptedBackend((TextDelta(LARGE), TurnEnd()))
    async with served(backend, shutdown_grace=0.05) as here:
        connections = [await connect(here) for _ in range(2)]
        for connection, stream in zip(connections, (True, False), strict=True):
            await connection.write(post(body(stream=stream)))
        await here.until(lambda: len(backend.turns) == 2)
        await connections[0].read_until(b"xxxxx")
        began = trio.current_time()
    assert trio.current_time() - began < 1.0
    assert here.lines("hanging up")


async def test_a_client_that_never_reads_does_not_outlive_a_server_that_is_cancelled(
    connect: Connect,
) -> None:
    backend = ScriptedBackend((TextDelta(LARGE), TurnEnd()))
    with trio.fail_after(SOON), trio.CancelScope() as at_once:
        async with served(backend, shutdown_grace=60.0) as here:
            connection = await connect(here)
            await connection.write(post(body(stream=True)))
            await connection.read_until(b"xxxxx")
            at_once.cancel()
    assert at_once.cancelled_caught
