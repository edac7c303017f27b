"""One of several server processes: `python -m pipeline.workers.worker`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from attrs import evolve, frozen

from pipeline.config import Settings, backend_options
from pipeline.errors import UsageError
from pipeline.loose_json import Json
from pipeline.serve.backends import Chosen, open_backend
from pipeline.serve.memory.peers import SUPERVISOR, Peers
from pipeline.serve.observe import logs
from pipeline.serve.running import collect_garbage_less_often, serving
from pipeline.serve.server import Server
from pipeline.workers import ipc
from pipeline.workers.app_servers import leased_app_server
from sources.app_server.process.binary import find_codex
from sources.app_server.process.pool import WORKSPACE

UNUSABLE = 2


@frozen
class WorkerConfig:
    """Sent to a worker's standard input, because it holds secrets."""

    number: int
    settings: Settings
    """With this worker's share of the limits."""
    listeners: list[int]
    """File descriptors of the sockets to listen on."""
    folder: str
    """The folder of the processes' socket files."""

    def to_json(self) -> bytes:
        return json.dumps(attrs.asdict(self)).encode()  # accepts strings that are not UTF-8

    @classmethod
    def from_json(cls, data: bytes) -> WorkerConfig:
        fields: dict[str, Any] = json.loads(data)
        fields["settings"] = Settings(**fields["settings"])
        return cls(**fields)


class Worker:
    """Serves until it gets a signal; exits at once when its standard input is closed."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._folder = Path(config.folder)
        self._supervisor = Peers(SUPERVISOR, self._folder).socket
        self._ready = False
        self._stop = trio.Event()

    async def run(self) -> int:
        """The exit status."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_input, nursery.cancel_scope)
                nursery.start_soon(self._watch_signals, signals, nursery.cancel_scope)
                try:
                    await self._serve(nursery)
                except UsageError as error:
                    await self._report("failed", reason=str(error))
                    return UNUSABLE
                finally:
                    nursery.cancel_scope.cancel()
        return 0

    async def _serve(self, nursery: trio.Nursery) -> None:
        settings = self._config.settings
        listeners = tuple(socket.socket(fileno=number) for number in self._config.listeners)
        peers = Peers(str(self._config.number), self._folder, listeners)
        async with open_backend(settings, chosen=self._chosen()) as backend:
            await backend.check_login()
            async with serving(settings, backend=backend, peers=peers) as running:
                await nursery.start(ipc.serve, peers.socket, partial(answer_peer, running.server))
                collect_garbage_less_often()
                await self._report("ready", pid=os.getpid())
                self._ready = True
                await self._stop.wait()

    def _chosen(self) -> Chosen | None:
        if self._config.settings.backend:
            return None  # an API instead of app-servers
        options = backend_options(self._config.settings)
        theirs = tuple(address for address in options.addresses if address != "stdio")
        ours = range(len(options.addresses) - len(theirs))
        options = evolve(options, addresses=theirs, workspace=self._folder / WORKSPACE)
        leased = tuple(leased_app_server(self._supervisor, number, options) for number in ours)
        codex = find_codex(options.codex) if ours else ""
        return Chosen(evolve(options, shared=leased), codex, name="app-servers")

    async def _report(self, kind: str, **given: object) -> None:
        """Send the supervisor a message, and wait until it was received."""
        message = {"kind": kind, "worker": self._config.number, **given}
        await ipc.request(self._supervisor, message)

    async def _watch_input(self, everything: trio.CancelScope) -> None:
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as held_open:
            await held_open.receive_some()
        everything.cancel()

    async def _watch_signals(
        self, signals: AsyncIterator[int], everything: trio.CancelScope
    ) -> None:
        """Stop gracefully. A second signal is ignored: if the whole process group gets the signal,
        the supervisor sends another one."""
        async for _ in signals:
            if not self._ready:
                everything.cancel()
            self._stop.set()


async def answer_peer(server: Server, _: ipc.Connection, message: Json) -> object:
    """The reply to a request of another worker."""
    match message:
        case {"kind": "makes", "id": response_id}:
            return response_id in server.jobs
        case {"kind": "cancel", "id": response_id}:  # the sender has checked the owner
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
            raise ValueError(f"another worker sent an unknown request: {message!r:.80}")


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # the supervisor exited first
    config = WorkerConfig.from_json(line)
    logs.configure(config.settings, worker=config.number)
    return trio.run(Worker(config).run)


if __name__ == "__main__":
    sys.exit(main())
