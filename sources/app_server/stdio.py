"""An app-server as a child process, spoken to over its standard input and output."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from sources.app_server.framing import LineFramer
from sources.app_server.transport import TransportClosedError

PAGE_SIZE: Final = resource.getpagesize()
READ_SIZE: Final = 65_536
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
LAST_MOMENT: Final = 0.3
GRACE: Final = 2.0
"""How long a child may take to end once its input is closed, and again once it is told to."""


class StdioTransport:
    """Owns one child process. Its stderr is drained always, the last lines kept for messages."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._framer = LineFramer()
        self._sending = trio.Lock()
        self._silent = trio.Event()
        self.last_words: deque[str] = deque(maxlen=20)

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
            start_new_session=True,  # a Ctrl-C in the terminal is ours to handle, not the child's
        )
        transport = cls(process)
        nursery.start_soon(transport._drain_stderr)
        return transport

    async def send(self, message: bytes) -> None:
        async with self._sending:  # two turns may speak at once; a line is one write
            try:
                await self._stdin.send_all(message + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._gone() from error

    async def receive(self) -> list[bytes]:
        while True:
            try:
                data = await self._stdout.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._gone() from error
            if not data:
                raise await self._gone()
            if lines := self._framer.feed(bytes(data)):
                return lines

    def memory(self) -> int | None:
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0  # no such file on this system: the number of turns alone decides
        return int(pages) * PAGE_SIZE

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            try:
                await self._stdin.aclose()  # the polite way: the app-server leaves at end of input
                await self._wait_a_little()
                if self.process.returncode is None:
                    self.process.terminate()
                    await self._wait_a_little()
            finally:  # a second Ctrl-C, which no shield holds back, must not leave it behind
                self._kill()
            await self.process.wait()
            await self._stdout.aclose()
            await self._stderr.aclose()

    async def _wait_a_little(self) -> None:
        with trio.move_on_after(GRACE):
            await self.process.wait()

    def _kill(self) -> None:
        """End it by force if it still lives, with whatever it started: the group is its own."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _gone(self) -> TransportClosedError:
        """How it ended. A child's output ends a moment before it does and before its last words."""
        with trio.move_on_after(LAST_MOMENT):
            await self._silent.wait()
            await self.process.wait()
        code = self.process.poll()
        how = "closed its output" if code is None else f"ended with status {code}"
        last_words = self.last_words[-1] if self.last_words else ""
        return TransportClosedError(f"codex app-server {how}", last_words)

    async def _drain_stderr(self) -> None:
        framer = LineFramer(longest=READ_SIZE)
        try:
            async for data in self._stderr:
                for line in framer.feed(bytes(data)):
                    words = _COLOURS.sub("", line.decode("utf-8", "replace"))
                    self.last_words.append(words[:500])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self._silent.set()
