"""Messages between the processes of one server: lines of JSON, on a socket file of each process."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import structlog
import trio

from pipeline.errors import UsageError
from pipeline.loose_json import Json

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Connection:
    """Messages in both directions. Python's own JSON takes file names that are not UTF-8."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._unread = b""

    async def send(self, message: object) -> None:
        await self._stream.send_all(json.dumps(message).encode() + b"\n")

    def send_now(self, message: object) -> None:
        """Send a short message, or drop it if it cannot be sent at once."""
        with suppress(OSError):
            os.write(self._stream.socket.fileno(), json.dumps(message).encode() + b"\n")

    async def receive(self) -> Any:
        """The next message; None at the end."""
        with suppress(trio.BrokenResourceError):
            while b"\n" not in self._unread:
                data = await self._stream.receive_some()
                if not data:
                    return None
                self._unread += data
            line, _, self._unread = self._unread.partition(b"\n")
            return json.loads(line)
        return None


Handler: TypeAlias = Callable[[Connection, Json], Awaitable[object]]
"""Takes a connection and its first message; the result is the reply."""


@asynccontextmanager
async def connect(path: Path) -> AsyncGenerator[Connection]:
    async with await trio.open_unix_socket(path) as stream:
        yield Connection(stream)


async def request(path: Path, message: Json, seconds: float = inf) -> Any:
    """Send a request; None if the reply takes too long. OSError if no process listens."""
    with trio.move_on_after(seconds):
        async with connect(path) as connection:
            await connection.send(message)
            return await connection.receive()
    return None


async def serve(path: Path, handle: Handler, *, task_status: trio.TaskStatus[Any]) -> None:
    """Listen, and reply with the handler's results."""

    async def connected(stream: trio.SocketStream) -> None:
        connection = Connection(stream)
        async with stream:
            try:
                await connection.send(await handle(connection, await connection.receive() or {}))
            except* trio.BrokenResourceError:
                pass  # the other process does not wait for a reply
            except* Exception:  # noqa: BLE001  # one bad message must not end the process
                _log.exception("a message from another process could not be handled")

    with trio.socket.socket(trio.socket.AF_UNIX) as listener:
        try:
            await trio.Path(path).unlink(missing_ok=True)  # left by a process that was killed
            await listener.bind(str(path))
        except OSError as error:
            problem = f"cannot listen on {path}: {error}"
            raise UsageError(f"{problem}; set TMPDIR to another folder, such as /tmp") from None
        listener.listen()
        sockets = [trio.SocketListener(listener)]
        await trio.serve_listeners(connected, sockets, task_status=task_status)
