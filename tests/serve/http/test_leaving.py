"""A client that leaves takes its turn with it, whenever it leaves, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pipeline.assembly import Settings
from pipeline.events import TextDelta, TurnEnd
from pipeline.serve.backends import CodexBackend
from sources.demo.chaos_child import ChaosChild
from tests.serve.scripted import HELLO, ScriptedBackend, Served, body, served
from tests.serve.wire import post, wire

STREAM = pytest.mark.parametrize("stream", [True, False])


def chaos(child: ChaosChild) -> CodexBackend:
    return CodexBackend(child.pool, Settings(), "fake", "")


def tasks() -> int:
    """How many tasks there are, system tasks and our own included."""
    return trio.lowlevel.current_statistics().tasks_living


async def settled() -> int:
    """How many tasks there are once the server has begun to listen."""
    await trio.testing.wait_all_tasks_blocked()
    return tasks()


async def leave_at(here: Served, request: bytes, when: bytes) -> None:
    """Send a request and leave once some bytes have come."""
    async with wire(here) as connection:
        await connection.write(request)
        if when:
            await connection.read_until(when)


# -- with a script ---------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("ahead", [b"\r\n", post(), post() * 9], ids=["crlf", "next", "many"])
async def test_who_sends_more_and_leaves_cancels_its_turn(stream: bool, ahead: bytes) -> None:
    """Hypercorn would not read, and so not notice, until the answer has ended."""
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, prime_window=60.0) as here:
        async with wire(here) as connection:
            await connection.write(post(body(stream=stream)))
            turn = await backend.until_turn()
            await connection.write(ahead)
        with trio.fail_after(30):
            await turn.over.wait()
        assert (turn.left, len(backend.turns)) == ("cancelled", 1)


async def test_who_reads_nothing_is_hung_up_on_in_time() -> None:
    words = (TextDelta("x" * 100_000),) * 200
    backend = ScriptedBackend((*words, TurnEnd()))
    async with served(backend, write_timeout=0.2) as here:
        async with wire(here) as connection:
            await connection.write(post(body(stream=True)))
            (line,) = await here.until_logged()
            assert line["client_left"] is True
            await here.until(lambda: here.server.admission.running == 0)
        assert (await here.ask("Hi")).status_code == 200


async def test_who_reads_slowly_is_not_hung_up_on() -> None:
    words = (TextDelta("x" * 100_000),) * 100
    async with served(ScriptedBackend((*words, TurnEnd())), write_timeout=0.5) as here:
        async with wire(here) as connection:
            await connection.write(post(body(stream=True)))
            got = b""
            while not got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                got = got[-100:] + bytes(await connection.stream.receive_some(200_000))
                await trio.sleep(0.01)  # longer in all than the server waits at a time
        (line,) = await here.until_logged()
        assert "client_left" not in line


@STREAM
async def test_who_leaves_before_the_first_byte_cancels_its_turn_once(stream: bool) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, prime_window=60.0) as here:
        before = await settled()
        async with wire(here) as connection:
            await connection.write(post(body(stream=stream)))
            turn = await backend.until_turn()
            assert here.server.admission.running == 1
        with trio.fail_after(30):
            await turn.over.wait()
        (line,) = await here.until_logged()
        assert (turn.left, len(backend.turns)) == ("cancelled", 1)
        assert line["client_left"] is True
        assert "error_code" not in line
        assert here.server.admission.running == 0
        mode = "stream" if stream else "json"
        assert here.metric(f'proxy_clients_left_total{{mode="{mode}"}}') == 1
        await here.until(lambda: tasks() <= before)


async def test_who_leaves_in_the_middle_of_a_stream_cancels_its_turn_once() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        before = await settled()
        await leave_at(here, post(body(stream=True)), b'"Hi"')
        await (await backend.until_turn()).over.wait()
        (line,) = await here.until_logged()
        assert (line["status"], line["client_left"]) == (200, True)
        assert "proxy_contract_violations_total{" not in here.server.metrics.exposition().decode()
        assert here.metric("proxy_streams_open") == 0
        await here.until(lambda: tasks() <= before)
        assert not here.lines("a stream broke")


async def test_who_leaves_while_pings_are_sent_is_missed() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, prime_window=0.0, ping_interval=0.02) as here:
        await leave_at(here, post(body(stream=True)), b": ping\n\n")
        await (await backend.until_turn()).over.wait()
        assert (await here.until_logged())[0]["client_left"] is True


@STREAM
async def test_who_leaves_the_queue_starts_no_turn(stream: bool) -> None:
    first = trio.Event()
    backend = ScriptedBackend((first, TextDelta("Hi"), TurnEnd()))
    async with served(backend, concurrency=1) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.ask)
        await backend.until_turn()
        async with wire(here) as connection:
            await connection.write(post(body(stream=stream)))
            await here.until(lambda: here.server.admission.waiting == 1)
            assert here.metric("proxy_queue_depth") == 1
        await here.until(lambda: here.server.admission.waiting == 0)
        first.set()
        lines = await here.until_logged(2)
        assert [line.get("client_left", False) for line in lines] == [True, False]
        assert (len(backend.turns), here.server.admission.running) == (1, 0)


async def test_who_leaves_with_several_choices_cancels_them_all() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        await leave_at(here, post(body(stream=True, n=3)), b'"Hi"')
        await here.until_logged()
        assert [turn.left for turn in backend.turns] == ["cancelled"] * 3
        assert here.server.admission.running == 0


async def test_who_leaves_in_the_middle_of_its_body_is_no_mistake_of_ours(shared: Served) -> None:
    await leave_at(shared, post()[:-5], b"")
    (line,) = await shared.until_logged()
    assert line["client_left"] is True
    assert (await shared.ask()).status_code == 200


async def test_who_reads_to_the_end_has_not_left() -> None:
    async with served(ScriptedBackend(HELLO)) as here:
        await here.ask(stream=True)
        await here.ask()
        assert not [line for line in await here.until_logged(2) if "client_left" in line]


# -- with an app-server ----------------------------------------------------------------------------


def ends(child: ChaosChild) -> list[str]:
    ending = ("turn/interrupt", "thread/delete")
    return [message["method"] for message in child.log() if message.get("method") in ending]


@pytest.mark.parametrize(
    ("words", "stream", "when"),
    [
        ("SILENT", True, b""),
        ("SILENT", True, b": ping\n\n"),
        ("HANG", True, b'"Wait"'),
        ("SILENT", False, b""),
        ("HANG", False, b""),
    ],
    ids=["prime window", "pings", "text", "silent, not streamed", "not streamed"],
)
async def test_the_app_server_is_told_to_stop_exactly_once(
    tmp_path: Path, words: str, stream: bool, when: bytes
) -> None:
    window = 0.01 if when.startswith(b":") else 60.0
    async with (
        ChaosChild(tmp_path).running() as child,
        served(chaos(child), prime_window=window) as here,
    ):
        async with wire(here) as connection:
            await connection.write(post(body(words, stream=stream)))
            await child.until(lambda: child.told("turn/start"))
            await here.until(lambda: child.pool.counters()["got turn/started"])
            if when:
                await connection.read_until(when)
        await child.until(lambda: "thread/delete" in ends(child))
        assert ends(child) == ["turn/interrupt", "thread/delete"]
        (line,) = await here.until_logged()
        assert line["client_left"] is True
        assert here.server.admission.running == 0
        assert (await here.ask("TEXT")).status_code == 200
        assert len(child.told("turn/interrupt")) == 1
