"""An app-server child process, connected by its standard input and output."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from sources.app_server.transport.child import READ_SIZE, Child
from sources.app_server.transport.framing import LineFramer

MOST_READS: Final = 4
PIPE_SIZE: Final = 1024 * 1024
"""The larger the pipe, the more one read gets under load."""
ATOMIC: Final = select.PIPE_BUF
"""The largest atomic write to a pipe."""


def widen(pipe: trio.lowlevel.FdStream) -> None:
    """Enlarge a pipe's buffer where the system allows it: it is only faster."""
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)


class StdioTransport(Child):
    """One child process, which exits at the end of its input."""

    def __init__(self, process: trio.Process) -> None:
        super().__init__(process)
        assert isinstance(process.stdout, trio.lowlevel.FdStream)  # noqa: S101
        self._stdout = process.stdout
        widen(self._stdout)
        self._framer = LineFramer()
        self._sending = trio.Lock()

    @classmethod
    async def start(
        cls,
        nursery: trio.Nursery,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
    ) -> StdioTransport:
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # this process handles a Ctrl-C in the terminal
        )
        transport = cls(process)
        nursery.start_soon(transport._drain_stderr)
        return transport

    def send_now(self, message: bytes) -> bool:
        if len(message) >= ATOMIC or self._sending.locked():
            return False
        try:
            os.write(self._stdin.fileno(), message + b"\n")
        except OSError:
            return False  # `send` raises the reason
        return True

    async def send(self, message: bytes) -> None:
        async with self._sending:  # turns send concurrently; lines must not mix
            try:
                await self._stdin.send_all(message + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._gone() from error

    async def receive(self) -> list[bytes]:
        while True:
            try:
                data = await self._read()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._gone() from error
            if not data:
                raise await self._gone()
            skipped = self._framer.overlong
            lines = self._framer.feed(data)
            # A line that is too long is passed on empty, so that it is reported.
            lines += [b""] * (self._framer.overlong - skipped)
            if lines:
                return lines

    async def _read(self) -> bytes:
        """All available data, after waiting for some: bursts grow with the load.

        Trio's own stream tries to read before it waits. For single lines that is a failed read and
        one more wake-up each.
        """
        while True:
            if self._stdout.fileno() < 0:
                raise trio.ClosedResourceError("the output was closed")
            await trio.lowlevel.wait_readable(self._stdout.fileno())
            with suppress(BlockingIOError):
                data = os.read(self._stdout.fileno(), READ_SIZE)
                return data if len(data) < READ_SIZE else data + self._more()

    def _more(self) -> bytes:
        """Further data, if one read did not get all."""
        pieces: list[bytes] = []
        for _ in range(MOST_READS - 1):
            try:
                pieces.append(os.read(self._stdout.fileno(), READ_SIZE))
            except OSError:
                break  # no more for now, or closed, which the next read reports
            if len(pieces[-1]) < READ_SIZE:
                break
        return b"".join(pieces)

    async def _farewell(self) -> None:
        await self._stdin.aclose()  # the app-server exits at the end of its input
        await self._wait_a_little()

    async def _clear_away(self) -> None:
        await self._stdout.aclose()
