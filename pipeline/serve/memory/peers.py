"""Requests between the workers that serve the same address."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio
from attrs import frozen

from pipeline.workers.ipc import request

SUPERVISOR: Final = "parent"
"""The name of the supervisor, which runs the app-servers and serves no requests."""
REPLY_WITHIN: Final = {"makes": 0.5, "health": 0.5, "metrics": 0.5, "cancel": 2.0}
"""The kinds of requests between workers, with the seconds to wait for each reply."""


@frozen
class Peers:
    """Connects a worker to the others; a server in one process has no name and no peers."""

    name: str = ""
    folder: Path = Path()
    """The folder of their socket files."""
    listeners: tuple[socket.socket, ...] = ()
    """The sockets that all of them listen on for clients."""

    @property
    def socket(self) -> Path:
        """The socket file of this worker."""
        return self.folder / f"ipc-{self.name}.sock"

    async def ask(self, kind: str, /, **given: str) -> list[Any]:
        """The replies of all running peers; None for each that takes too long."""
        replies: list[Any] = []

        async def ask_one(path: Path) -> None:
            with suppress(ConnectionRefusedError, FileNotFoundError):  # it is not running
                replies.append(await request(path, {"kind": kind, **given}, REPLY_WITHIN[kind]))

        async with trio.open_nursery() as nursery:
            for path in self.folder.glob("ipc-*.sock") if self.name else ():
                if path != self.socket:
                    nursery.start_soon(ask_one, path)
        return replies


ALONE: Final = Peers()
