"""A fake Codex that listens on a socket file; every connection gets a fake of its own behind it.

When one of them is told to die, all of it dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
import trio_websocket
from trio_websocket import ConnectionClosed, WebSocketConnection

COMMAND = (sys.executable, "-m", "pipeline.cli.fake_codex")
SCRIPT = """#!/bin/sh
case "$*" in
*"debug models"*) echo '{{"models": []}}';;
*"mcp list"*) echo '[]';;
*) echo $$ >> {pids}; exec {python} {here} "$@";;
esac
"""


def fake_codex(folder: Path) -> str:
    """A program that can be put where a Codex is wanted, if it is to listen."""
    path = folder / "codex"
    path.write_text(
        SCRIPT.format(pids=folder / "pids", python=sys.executable, here=Path(__file__).absolute())
    )
    path.chmod(0o755)
    return str(path)


def pids(folder: Path) -> list[int]:
    """The processes of all that were started, in order."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def _serve(path: str) -> None:
    async def connected(stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)
            socket = await request.accept()
            process = await trio.lowlevel.open_process(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            nursery.start_soon(tell, socket, process)
            await hear(socket, process)
            nursery.cancel_scope.cancel()

    async def tell(socket: WebSocketConnection, process: trio.Process) -> None:
        assert process.stdin is not None
        with suppress(ConnectionClosed, trio.BrokenResourceError):
            while True:
                message: Any = await socket.get_message()
                await process.stdin.send_all(message.encode() + b"\n")
        await process.stdin.aclose()

    async def hear(socket: WebSocketConnection, process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            with suppress(ConnectionClosed):
                for line in lines:
                    await socket.send_message(line.decode())
        if await process.wait():
            os._exit(3)

    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(path)
    listener.listen()
    await trio.serve_listeners(connected, [trio.SocketListener(listener)])


if __name__ == "__main__":
    where = sys.argv[sys.argv.index("--listen") + 1]
    trio.run(_serve, where.removeprefix("unix://"))
