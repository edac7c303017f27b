"""A Codex as a child process: its last words, its memory, and an end that leaves nothing behind."""

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
"""How long a child may take to end once its input is closed, and again once it is told to."""


class Child:
    """Owns one child process. Its stderr is drained always, the last lines kept for messages."""

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
            return 0  # no such file on this system: the number of turns alone decides
        return int(pages) * PAGE_SIZE

    async def aclose(self) -> None:
        """End it: politely, then not; and leave nothing of it behind."""
        with trio.CancelScope(shield=True):
            try:
                await self._farewell()
                if self.process.returncode is None:
                    self.process.terminate()
                    await self._wait_a_little()
            finally:  # a second Ctrl-C, which no shield holds back, must not leave it behind
                self._kill()
            await self.process.wait()
            await self._stdin.aclose()
            await self._stderr.aclose()
            await self._clear_away()

    async def _farewell(self) -> None:
        """The polite way to tell it."""

    async def _clear_away(self) -> None:
        """Let go of what else it had."""

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
