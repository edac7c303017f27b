"""The fake Codex as a child process that is kept running, and what it was told."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from pipeline.loose_json import Json, as_json
from sources.app_server.process.backend import Pool
from sources.app_server.process.patience import Patience
from sources.app_server.process.supervisor import AppServer
from sources.app_server.transport.stdio import StdioTransport
from sources.app_server.transport.transport import Transport
from sources.app_server.turn.kept import KeepOptions

COMMAND = (sys.executable, "-m", "pipeline.cli.fake_codex")
HURRY = Patience(handshake=10.0, first_pause=0.02)
HOLD_NONE = KeepOptions(most=0)


class ChaosChild:
    """One app-server of our own making. The log outlives its lives: it has all they were told."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        patience: Patience = HURRY,
        keep: KeepOptions = HOLD_NONE,
    ) -> None:
        self._log = folder / "told.jsonl"
        self._log.touch()
        self._command = [*COMMAND, *flags, "--log", str(self._log)]
        self._folder = str(folder)
        self.server = AppServer("fake-codex", self.connect, self._folder, patience)
        self.pool = Pool([self.server], patience.handshake, keep)

    async def connect(self, nursery: trio.Nursery) -> Transport:
        return await StdioTransport.start(nursery, self._command, env=os.environ, cwd=self._folder)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ChaosChild]:
        """Keep it running, from its first readiness on."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.run)
            await self.server.until_ready()
            yield self
            nursery.cancel_scope.cancel()

    # -- what it was told ------------------------------------------------------------------------

    def log(self) -> list[Json]:
        """Everything it received, in order; each life begins with its process id."""
        lines = self._log.read_bytes().splitlines(keepends=True)
        return [as_json(msgspec.json.decode(line)) for line in lines if line.endswith(b"\n")]

    def told(self, method: str) -> list[Json]:
        """The parameters of every request of a method, with all its lives."""
        return [as_json(m.get("params")) for m in self.log() if m.get("method") == method]

    @property
    def pids(self) -> list[int]:
        """The process ids of its lives; the last one may live."""
        return [message["pid"] for message in self.log() if "pid" in message]

    async def until(self, condition: Callable[[], object], limit: float = 8.0) -> None:
        """Wait until something holds, such as that it was told something; not for ever."""
        with trio.fail_after(limit):
            while not condition():  # noqa: ASYNC110 (a log file tells nobody that it grew)
                await trio.sleep(0.005)
