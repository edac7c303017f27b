"""What is written to a child: everything, once, in order, however much it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from sources.app_server.client import AppServerClient
from sources.app_server.stdio import ATOMIC, StdioTransport

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


async def test_nobody_is_told_of_a_broken_pipe_too_early(tmp_path: Path) -> None:
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
