"""A Codex child process: its stderr, its memory, and stopping it with its whole process group."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from sources.app_server.transport.framing import LineFramer
from sources.app_server.transport.transport import TransportClosedError

PAGE_SIZE: Final = resource.getpagesize()
READ_SIZE: Final = 65_536
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
LAST_MOMENT: Final = 0.3
GRACE: Final = 2.0
"""Seconds for a child to exit after its input is closed, and again after SIGTERM."""


class Child:
    """Owns one child process. Its stderr is always drained; the last lines are kept."""

    def __init__(self, process: trio.Process) -> None:
        assert isinstance(process.stdin, trio.lowlevel.FdStream)  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.process = process
        self._stdin, self._stderr = process.stdin, process.stderr
        self._silent = trio.Event()
        self.last_words: deque[str] = deque(maxlen=20)

    def memory(self) -> int | None:
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0  # no such file on this system: only the number of turns counts
        return int(pages) * PAGE_SIZE

    async def aclose(self) -> None:
        """Stop it, gracefully and then by force, with all its processes."""
        with trio.CancelScope(shield=True):
            try:
                await self._farewell()
                if self.process.returncode is None:
                    self.process.terminate()
                    await self._wait_a_little()
            finally:  # a second Ctrl-C ignores the shield, and must not leave the child running
                self._kill()
            await self.process.wait()
            await self._stdin.aclose()
            await self._stderr.aclose()
            await self._clear_away()

    async def _farewell(self) -> None:
        """Ask it to exit."""

    async def _clear_away(self) -> None:
        """Release its other resources."""

    async def _wait_a_little(self) -> None:
        with trio.move_on_after(GRACE):
            await self.process.wait()

    def _kill(self) -> None:
        """Kill its process group, if it still runs, with everything that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _gone(self) -> TransportClosedError:
        """How it exited. Its output ends a moment before it exits and before stderr ends."""
        with trio.move_on_after(LAST_MOMENT):
            await self._silent.wait()
            await self.process.wait()
        code = self.process.poll()
        how = "closed its output" if code is None else f"exited with status {code}"
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
