"""The other workers that serve the same address: what they are asked, and what they answer."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import frozen

from pipeline.loose_json import Json
from pipeline.workers.ipc import Connection, request

if TYPE_CHECKING:
    from pipeline.serve.app import Server

SUPERVISOR: Final = "parent"
"""Its name among them: it runs the app-servers, and makes no responses."""
REPLY_WITHIN: Final = {"makes": 0.5, "health": 0.5, "metrics": 0.5, "cancel": 2.0}
"""What a worker may ask the others, and how many seconds each of them may take to reply."""


@frozen
class Peers:
    """How a worker reaches the others; a server in one process has no name and no peers."""

    name: str = ""
    folder: Path = Path()
    """Where each of them has a socket file."""
    listeners: tuple[socket.socket, ...] = ()
    """What all of them listen on for clients."""

    @property
    def socket(self) -> Path:
        """Where the worker listens for the others."""
        return self.folder / f"ipc-{self.name}.sock"

    async def ask(self, kind: str, /, **given: str) -> list[Any]:
        """The replies of all others that run; None for each that takes too long."""
        replies: list[Any] = []

        async def ask_one(path: Path) -> None:
            with suppress(ConnectionRefusedError, FileNotFoundError):  # it does not run
                replies.append(await request(path, {"kind": kind, **given}, REPLY_WITHIN[kind]))

        async with trio.open_nursery() as nursery:
            for path in self.folder.glob("ipc-*.sock") if self.name else ():
                if path != self.socket:
                    nursery.start_soon(ask_one, path)
        return replies


ALONE: Final = Peers()


async def answer_peer(server: Server, _: Connection, message: Json) -> object:
    """The reply to another worker."""
    match message:
        case {"kind": "makes", "id": response_id}:
            return response_id in server.jobs
        case {"kind": "cancel", "id": response_id}:  # who asks has checked whose it is
            job = server.jobs.get(response_id)
            if job is not None:
                job.scope.cancel()
                await job.over.wait()  # its last state is stored by then
            return None
        case {"kind": "health"}:
            return {"turns": server.admission.running, "waiting": server.admission.waiting}
        case {"kind": "metrics"}:
            return {"name": server.peers.name, "text": server.metrics.exposition().decode()}
        case _:
            raise ValueError(f"another worker sent {message!r:.80}, which is not known here")
