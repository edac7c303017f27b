"""An app-server as a child process that listens on a socket file, for several processes at once."""

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

ENDS_WITH_US: Final = f"""
exec 3<&0
(trap '' TERM; read -r _ <&3; kill -s TERM -- "-$$"; sleep {GRACE:g}; kill -s KILL -- "-$$") \
>/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""
"""An app-server that listens does not leave at the end of its input, so somebody must see to it
that it does not outlive us: a shell beside it, which ends its group once our end of a pipe closes.
The app-server itself takes the first shell's place, and with it the number of its process."""
OF_CODEX: Final = "codex-daemon-"
"""How the folders begin in which Codex itself puts sockets."""
LOOKS: Final = (0.01, 0.02, 0.05)
"""It does not say when it listens: pauses between looking, of which the last is repeated."""


class ListeningChild(Child):
    """One child process and our own connection to it, over which its health is known."""

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
        """Start it and connect; it must be told to listen there, in a folder that is only ours."""
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", ENDS_WITH_US, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # a Ctrl-C in the terminal is ours to handle, not the child's
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
        for pause in chain(LOOKS, repeat(LOOKS[-1])):  # whoever starts it has a bound for it
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
        """Remove its socket, which one that was killed has left."""
        for left in _files_of(Path(self.address.removeprefix("unix://"))):
            with suppress(OSError):
                await trio.Path(left).unlink()

    def _kill(self) -> None:
        """End whatever is left of its group: the shell beside it always is."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _files_of(socket: Path) -> list[Path]:
    """Since 0.163, Codex has a short path for its socket, with a lock, and makes ours a link."""
    try:
        target = socket.readlink()
    except OSError:
        return [socket]
    if not target.parent.name.startswith(OF_CODEX):
        return [socket]
    return [socket, target, target.with_name(f"{target.name}.lock")]
