"""An app-server child process that listens on a socket file, for several processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Final

import trio

from sources.app_server.transport.child import GRACE, Child
from sources.app_server.transport.transport import Transport, TransportClosedError
from sources.app_server.transport.websocket import WebSocketTransport

EXIT_WITH_PARENT: Final = f"""
exec 3<&0
(trap '' TERM; read -r _ <&3; kill -s TERM -- "-$$"; sleep {GRACE:g}; kill -s KILL -- "-$$") \
>/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""
"""A listening app-server does not exit at the end of its input. So a shell beside it ends their
process group when this process closes its end of a pipe. The app-server itself replaces the first
shell and so has its process id."""
CODEX_FOLDER: Final = "codex-daemon-"
"""The prefix of the folders in which Codex itself puts sockets."""
RETRY_PAUSES: Final = (0.01, 0.02, 0.05)
"""Codex does not report when it listens: seconds between attempts, the last one repeated."""


class ListeningChild(Child):
    """One child process and a connection to it, which shows whether it is alive."""

    def __init__(self, process: trio.Process, address: str) -> None:
        super().__init__(process)
        self.address = address
        self._connection: Transport | None = None

    @classmethod
    async def start(
        cls,
        nursery: trio.Nursery,
        command: Sequence[str],
        socket: Path,
        *,
        env: Mapping[str, str],
        cwd: str,
    ) -> ListeningChild:
        """Start it and connect; the command must make it listen there, in a private folder."""
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", EXIT_WITH_PARENT, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # this process handles a Ctrl-C in the terminal
        )
        child = cls(process, f"unix://{socket}")
        nursery.start_soon(child._drain_stderr)
        try:
            child._connection = await child._connect(nursery)
        except BaseException:
            await child.aclose()
            raise
        return child

    async def _connect(self, nursery: trio.Nursery) -> Transport:
        for pause in chain(RETRY_PAUSES, repeat(RETRY_PAUSES[-1])):  # the caller has a timeout
            if self.process.poll() is not None:
                raise await self._gone()
            try:
                return await WebSocketTransport.connect(nursery, self.address)
            except TransportClosedError:
                await trio.sleep(pause)
        raise AssertionError("unreachable: the pauses never end")

    def send_now(self, message: bytes) -> bool:
        return self._connection is not None and self._connection.send_now(message)

    async def send(self, message: bytes) -> None:
        assert self._connection is not None  # noqa: S101
        try:
            await self._connection.send(message)
        except TransportClosedError as error:
            raise await self._gone() from error

    async def receive(self) -> list[bytes]:
        assert self._connection is not None  # noqa: S101
        try:
            return await self._connection.receive()
        except TransportClosedError as error:
            raise await self._gone() from error

    async def _farewell(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()

    async def _clear_away(self) -> None:
        """Remove its socket, which a killed process leaves behind."""
        for left in _files_of(Path(self.address.removeprefix("unix://"))):
            with suppress(OSError):
                await trio.Path(left).unlink()

    def _kill(self) -> None:
        """Kill the rest of its group; the shell beside it is always left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _files_of(socket: Path) -> list[Path]:
    """Since 0.163, Codex puts its socket and a lock at a short path, and links the given path."""
    try:
        target = socket.readlink()
    except OSError:
        return [socket]
    if not target.parent.name.startswith(CODEX_FOLDER):
        return [socket]
    return [socket, target, target.with_name(f"{target.name}.lock")]
