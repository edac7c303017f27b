"""What is written to a child and read from it: everything, once, in order, however much it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from sources.app_server.protocol.client import AppServerClient
from sources.app_server.transport.child import READ_SIZE
from sources.app_server.transport.stdio import ATOMIC, MOST_READS, StdioTransport
from sources.app_server.transport.transport import TransportClosedError

ECHO = "import sys, os\nwhile d := os.read(0, 65536): os.write(1, d)"
DEAF = "import time\ntime.sleep(30)"


async def started(nursery: trio.Nursery, folder: Path, program: str) -> StdioTransport:
    command = [sys.executable, "-c", program]
    return await StdioTransport.start(nursery, command, env=os.environ, cwd=str(folder))


async def test_short_messages_are_written_at_once_and_long_ones_wait(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, ECHO)
        assert child.send_now(b"short")
        assert not child.send_now(b"x" * ATOMIC)
        with trio.fail_after(10):
            assert await child.receive() == [b"short"]
        await child.aclose()
        nursery.cancel_scope.cancel()


async def test_a_full_pipe_takes_a_message_whole_or_not_at_all(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, DEAF)
        sent = 0
        while child.send_now(b"x" * 1000):
            sent += 1
            assert sent < 10_000
        assert sent >= 60
        assert not child.send_now(b"y" * 4000)
        child.process.kill()
        await child.aclose()
        nursery.cancel_scope.cancel()


async def test_a_broken_pipe_is_not_reported_too_early(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, "")
        await child.process.wait()
        assert not child.send_now(b"anybody?")
        await child.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sizes", [(10, 20, 10), (10, 9000, 10, 200_000, 10), (5000,) * 40])
async def test_requests_leave_in_the_order_they_were_made(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, ECHO)
        client = AppServerClient(child)
        got: list[bytes] = []

        async def listen() -> None:
            while len(got) < len(sizes):
                got.extend(await child.receive())
            nursery.cancel_scope.cancel()

        for number, size in enumerate(sizes):
            client.begin(f"m{number}", {"filling": "x" * size})
        nursery.start_soon(client._write)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        nursery.start_soon(listen)
        nursery.cancel_scope.deadline = trio.current_time() + 20
    assert [line.count(b"x") for line in got] == list(sizes)
    assert [line.partition(b'"method":"m')[2].partition(b'"')[0] for line in got] == [
        str(number).encode() for number in range(len(sizes))
    ]
    with trio.CancelScope(shield=True):
        await child.aclose()


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, READ_SIZE - 1, READ_SIZE, 3 * READ_SIZE * MOST_READS])
async def test_lines_of_any_length_are_read_whole(size: int, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, ECHO)
        nursery.start_soon(child.send, b"x" * size)
        with trio.fail_after(10):
            assert await child.receive() == [b"x" * size]
        await child.aclose()
        nursery.cancel_scope.cancel()


async def test_to_be_woken_for_nothing_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait_readable = 0, trio.lowlevel.wait_readable

    async def woken_for_nothing(number: int) -> None:
        nonlocal waits
        waits += 1
        if waits > 1:
            await wait_readable(number)

    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, ECHO)
        with monkeypatch.context() as patch, trio.fail_after(10):
            patch.setattr(
                "sources.app_server.transport.stdio.trio.lowlevel.wait_readable", woken_for_nothing
            )
            nursery.start_soon(child.send, b"hello")
            assert await child.receive() == [b"hello"]
        await child.aclose()
        nursery.cancel_scope.cancel()
    assert waits > 1


async def test_nothing_is_read_from_a_child_that_was_closed(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        child = await started(nursery, tmp_path, ECHO)
        await child.aclose()
        with pytest.raises(TransportClosedError):
            await child.receive()
        nursery.cancel_scope.cancel()
