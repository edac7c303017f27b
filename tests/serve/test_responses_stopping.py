"""A server that ends while it answers on the Responses API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from pipeline.events import TextDelta, TurnEnd
from tests.serve.asking import LOOK, RESPONSES, look_up, text, wish
from tests.serve.scripted import SOON, Script, ScriptedBackend, Served, call, served
from tests.serve.wire import Wire, post
from tests.support.responses_automaton import check_stream


class Client:
    """Asks for one stream, and reads it to its end although the server has gone."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._connections: list[Wire] = []

    async def ask(self, here: Served, until: bytes, **more: object) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", here.port)
        connection = Wire(await self._stack.enter_async_context(stream))
        self._connections.append(connection)
        await connection.write(
            post(wish("Hi") | {"stream": True, "tools": [LOOK], **more}, path=RESPONSES)
        )
        self._begun = await self._after_head(connection, until)

    async def _after_head(self, connection: Wire, until: bytes) -> bytes:
        await connection.read_until(b"\r\n\r\n")
        return await connection.read_until(until)

    async def rest(self) -> dict[str, object]:
        """The response that the stream ends with; then the server hangs up."""
        (connection,) = self._connections
        data = self._begun + await connection.read_until(b"data: [DONE]\n\n")
        assert await connection.ended()
        return check_stream(b"".join(data.split(b"\r\n")[1::2]))  # chunks stand between sizes


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    async with AsyncExitStack() as stack:
        yield Client(stack)


async def test_a_stream_that_runs_may_finish(client: Client) -> None:
    go = trio.Event()
    backend = ScriptedBackend((TextDelta("Hi"), go, TextDelta(" there"), TurnEnd()))

    async def finish(here: Served) -> None:
        await here.server.stopping.wait()
        go.set()

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery, served(backend, shutdown_grace=60.0) as here:
            await client.ask(here, b'"Hi"')
            nursery.start_soon(finish, here)
    response = await client.rest()
    assert (response["status"], text(response)) == ("completed", "Hi there")


async def test_a_stream_that_takes_too_long_is_failed_and_kept_so(
    client: Client, tmp_path: Path
) -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    store = str(tmp_path / "store.sqlite3")
    async with served(backend, store=store, shutdown_grace=0.05) as here:
        await client.ask(here, b'"Hi"')
    response = await client.rest()
    assert (response["status"], text(response)) == ("failed", "Hi")
    assert "try again in" in str(response["error"])
    assert backend.turns[0].left == "cancelled"
    async with served(store=store) as again:
        assert (await look_up(again, str(response["id"]))).json() == response


async def test_a_stream_with_a_call_is_finished_for_it_to_be_run(client: Client) -> None:
    script: Script = (call("a"), trio.Event())
    async with served(ScriptedBackend(script), stop_after_tools=False) as here:
        await client.ask(here, b"response.output_item.done")
    response = await client.rest()
    assert (response["status"], response["error"]) == ("completed", None)


async def test_a_summary_that_takes_too_long_is_failed(client: Client) -> None:
    backend = ScriptedBackend((trio.Event(),))
    words = {"type": "message", "role": "user", "content": "Hi"}
    async with served(backend, prime_window=0.01) as here:
        await client.ask(here, b'"keepalive"', input=[words, {"type": "compaction_trigger"}])
    assert (await client.rest())["status"] == "failed"
