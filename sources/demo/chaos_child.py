"""The fake Codex as a supervised child process, with a log of what it received."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from pipeline.loose_json import Json, as_json
from sources.app_server.process.patience import Patience
from sources.app_server.process.pool import Pool
from sources.app_server.process.supervisor import AppServer
from sources.app_server.transport.stdio import StdioTransport
from sources.app_server.transport.transport import Transport
from sources.app_server.turn.kept import KeepOptions

COMMAND = (sys.executable, "-m", "pipeline.cli.fake_codex")
QUICK = Patience(handshake=10.0, first_pause=0.02)
HOLD_NONE = KeepOptions(most=0)


class ChaosChild:
    """A supervised fake app-server. Its log spans restarts."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        patience: Patience = QUICK,
        keep: KeepOptions = HOLD_NONE,
    ) -> None:
        self._log = folder / "received.jsonl"
        self._log.touch()
        self._command = [*COMMAND, *flags, "--log", str(self._log)]
        self._folder = str(folder)
        self.server = AppServer("fake-codex", self.connect, self._folder, patience)
        self.pool = Pool([self.server], patience.handshake, keep)

    async def connect(self, nursery: trio.Nursery) -> Transport:
        return await StdioTransport.start(nursery, self._command, env=os.environ, cwd=self._folder)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ChaosChild]:
        """Keep it running; entered once it is ready."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.run)
            await self.server.until_ready()
            yield self
            nursery.cancel_scope.cancel()

    # -- what it received ------------------------------------------------------------------------

    def log(self) -> list[Json]:
        """Everything it received, in order; each start begins with its process id."""
        lines = self._log.read_bytes().splitlines(keepends=True)
        return [as_json(msgspec.json.decode(line)) for line in lines if line.endswith(b"\n")]

    def told(self, method: str) -> list[Json]:
        """The parameters of every request of a method, across restarts."""
        return [as_json(m.get("params")) for m in self.log() if m.get("method") == method]

    @property
    def pids(self) -> list[int]:
        """The process ids of all starts; the last process may still run."""
        return [message["pid"] for message in self.log() if "pid" in message]

    async def until(self, condition: Callable[[], object], limit: float = 8.0) -> None:
        """Wait until a condition holds, with a timeout."""
        with trio.fail_after(limit):
            while not condition():  # noqa: ASYNC110 (a log file has no event)
                await trio.sleep(0.005)
