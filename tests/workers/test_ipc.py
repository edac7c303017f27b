"""Messages between two processes: replies, silence, and the end of one side."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pipeline.errors import UsageError
from pipeline.loose_json import Json
from pipeline.workers import ipc


async def echo(_: ipc.Connection, message: Json) -> object:
    return message


async def silence(_: ipc.Connection, __: Json) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def listening(handle: ipc.Handler, path: Path) -> AsyncGenerator[trio.CancelScope]:
    """A process that answers; its life can be cancelled."""
    async with trio.open_nursery() as nursery:
        await nursery.start(ipc.serve, path, handle)
        yield nursery.cancel_scope
        nursery.cancel_scope.cancel()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ipc.sock"


async def test_a_request_gets_its_reply_whatever_it_holds(path: Path) -> None:
    message = {"kind": "line\nbreaks", "id": 7, "given": {"deep": [1, None, "é", "\udcff"]}}
    async with listening(echo, path):
        assert await ipc.request(path, message) == message
        assert await ipc.request(path, {"text": "x" * 3_000_000}) is not None


async def test_a_slow_reply_holds_up_no_other(path: Path) -> None:
    first, order = trio.Event(), list[str]()

    async def answer(_: ipc.Connection, message: Json) -> object:
        if message["kind"] == "slow":
            await first.wait()
        return message["kind"]

    async def ask(kind: str) -> None:
        order.append(await ipc.request(path, {"kind": kind}))
        first.set()

    async with listening(answer, path), trio.open_nursery() as nursery:
        nursery.start_soon(ask, "slow")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "fast")
    assert order == ["fast", "slow"]


async def test_a_reply_is_not_waited_for_longer_than_it_may_take(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(silence, path):
        begun = trio.current_time()
        assert await ipc.request(path, {"kind": "anything"}, 2.0) is None
        assert trio.current_time() - begun == pytest.approx(2.0)


async def test_a_waiting_process_notices_when_the_other_side_is_gone(path: Path) -> None:
    async def cut() -> None:
        await trio.testing.wait_all_tasks_blocked()
        life.cancel()

    async with trio.open_nursery() as nursery, listening(silence, path) as life:
        nursery.start_soon(cut)
        with trio.CancelScope(shield=True):
            assert await ipc.request(path, {"kind": "anything"}) is None
    with pytest.raises(OSError, match="refused"):
        await ipc.request(path, {"kind": "anything more"})


async def test_a_process_that_stops_waiting_does_no_harm(path: Path) -> None:
    done = trio.Event()

    async def answer(_: ipc.Connection, message: Json) -> object:
        if message["kind"] == "one":
            await done.wait()
        return message["kind"]

    async with listening(answer, path):
        with capture_logs() as logged:
            assert await ipc.request(path, {"kind": "one"}, 0.01) is None
            done.set()
            await trio.testing.wait_all_tasks_blocked()
            assert await ipc.request(path, {"kind": "two"}) == "two"
    assert logged == []


async def test_a_bug_in_a_handler_is_logged_and_harms_no_other_message(path: Path) -> None:
    async def broken(_: ipc.Connection, message: Json) -> object:
        if message["kind"] == "break":
            raise RuntimeError("oops")
        return message["kind"]

    async with listening(broken, path):
        with capture_logs() as logged:
            assert await ipc.request(path, {"kind": "break"}) is None
        assert await ipc.request(path, {"kind": "go on"}) == "go on"
    assert [line["event"] for line in logged] == [
        "a message from another process could not be handled"
    ]


async def test_the_socket_of_a_process_that_was_killed_is_replaced(path: Path) -> None:
    async with listening(silence, path):
        pass
    with pytest.raises(ConnectionRefusedError):
        await ipc.request(path, {})
    async with listening(echo, path):
        assert await ipc.request(path, {"kind": "hello"}) == {"kind": "hello"}


async def test_a_message_that_cannot_be_sent_at_once_is_left_out(path: Path) -> None:
    got, read = list[object](), trio.Event()

    async def count(connection: ipc.Connection, _: Json) -> None:
        await read.wait()
        while (message := await connection.receive()) is not None:
            got.append(message)

    async with listening(count, path):
        async with ipc.connect(path) as connection:
            await connection.send({})
            for _ in range(100_000):
                connection.send_now("turn")
            read.set()
        connection.send_now("nobody is there")
        await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(got) < 100_000
    assert set(got) == {"turn"}


async def test_a_folder_with_too_long_a_name_is_reported(tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(UsageError, match="set TMPDIR to another folder")):
        async with listening(echo, tmp_path / ("d" * 120)):
            pass
