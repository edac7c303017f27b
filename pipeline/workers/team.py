"""The workers: started, told what they need, asked for one another, started again, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
import trio
from attrs import evolve

from pipeline.errors import UsageError
from pipeline.loose_json import Json, as_json, text_of
from pipeline.serve.metrics import backend_exposition
from pipeline.workers.hosting import Hosted
from pipeline.workers.line import Line, LineCutError
from pipeline.workers.orders import Orders
from sources.app_server.supervisor import Patience, Pauses

COMMAND: Final = (sys.executable, "-m", "pipeline.workers.worker")
SOON_ENOUGH: Final = 5.0
"""How long a worker may take to answer for another; a request waits for it."""
ANSWERING: Final = {"health": 0.5, "metrics": 0.5}
"""Those who ask for these have little patience, and can do without one worker's answer."""
UNANSWERED: Final = {"makes": True}
"""What silence is taken for: who does not say may be making it."""
GRACE: Final = 3.0
"""How long a worker may take to end at once."""
PARENT: Final = "parent"
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Team:
    """So many workers, always; what one asks of the others goes through here."""

    def __init__(self, number: int, orders: Orders, hosted: Sequence[Hosted]) -> None:
        """`orders` are those of all, but for a worker's own number and line."""
        self.orders = orders
        self.hosted = hosted
        self.stopping = trio.Event()
        self.counters: Counter[str] = Counter()
        self._members = [Member(self, one) for one in range(1, number + 1)]

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Started when all of them serve; ends when all have been stopped."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(member.run)
            for member in self._members:
                await member.serves.wait()
            task_status.started()

    def stop(self) -> None:
        """Let them finish what they answer, and end."""
        self.stopping.set()
        for member in self._members:
            member.tell("stop")

    async def ask_others(self, asker: Member, what: str, given: Json) -> list[Any]:
        """What the others answered in time; one that is gone makes and keeps nothing."""
        answers: list[Any] = []

        async def ask(member: Member) -> None:
            with suppress(LineCutError):
                answers.append(await member.ask(what, given))

        async with trio.open_nursery() as nursery:
            for member in self._members:
                if member is not asker:
                    nursery.start_soon(ask, member)
        if what == "metrics":
            answers.append({"name": PARENT, "text": self._exposition().decode()})
        return [answer for answer in answers if answer is not None]

    def _exposition(self) -> bytes:
        counted = (hosted.server.counters for hosted in self.hosted)
        return backend_exposition(sum(counted, self.counters.copy()))


class Member:
    """One worker's place, with as many lives as it takes."""

    def __init__(self, team: Team, number: int) -> None:
        self._team = team
        self._number = number
        self._line: Line | None = None
        self._missed: tuple[Line, int] | None = None
        """The line on which an answer was missed, and how much had been heard on it by then."""
        self._problem = ""
        self.serves = trio.Event()
        """Set once it has served; from then on it is started again whenever it ends."""

    async def run(self) -> None:
        """UsageError says why it cannot serve, if it never could."""
        pauses = Pauses(Patience())
        while not self._team.stopping.is_set():
            self._problem = ""
            status = await self._live()
            if self._team.stopping.is_set():
                return
            if not self.serves.is_set():
                raise UsageError(self._problem or _died(self._number, status))
            pause = pauses.next()
            self._team.counters["worker restarts"] += 1
            _log.error(
                "a worker ended and will be started again",
                worker=self._number,
                reason=self._problem or f"it ended with status {status}",
                pause=round(pause, 2),
            )
            with trio.move_on_after(pause):
                await self._team.stopping.wait()

    def tell(self, what: str) -> None:
        if self._line is not None:
            self._line.tell(what)

    async def ask(self, what: str, given: Json) -> Any:
        """What it answers in time; who did not is not waited for until it is heard of again."""
        line = self._line
        if line is None:
            raise LineCutError
        if self._missed != (line, line.heard):
            with trio.move_on_after(ANSWERING.get(what, SOON_ENOUGH)):
                return await line.ask(what, **given)
            if what not in ANSWERING:
                self._missed = line, line.heard
        return UNANSWERED.get(what)

    async def _live(self) -> int:
        """From its start to its end, of which the status is told."""
        ours, theirs = socket.socketpair()
        with theirs:
            orders = evolve(self._team.orders, number=self._number, line=theirs.fileno())
            try:
                process = await trio.lowlevel.open_process(
                    list(COMMAND),
                    stdin=subprocess.PIPE,
                    pass_fds=(orders.line, *orders.listeners),
                    start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
                )
            except OSError as error:
                ours.close()
                self._problem = f"worker {self._number} cannot be started: {error.strerror}"
                return 1
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            async with trio.open_nursery() as nursery:
                self._line = Line(stream, self._answer)
                nursery.start_soon(self._line.run)
                nursery.start_soon(_give, process, orders)
                for hosted in self._team.hosted:
                    nursery.start_soon(hosted.keep_told, self._line)
                if self._team.stopping.is_set():
                    self.tell("stop")
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._line = None
            await _end(process, stream)
        return process.returncode or 0

    async def _answer(self, what: str, given: Json) -> object:
        match what:
            case "ready":
                _log.info("a worker serves", worker=self._number, pid=given["pid"])
                self.serves.set()
            case "cannot":
                self._problem = text_of(given["reason"])
            case "turn":
                self._team.hosted[int(given["server"])].server.turn_begins()
            case "others":
                asked = partial(self._team.ask_others, self, text_of(given["what"]))
                return await asked(as_json(given["given"]))
            case _:
                raise ValueError(f"a worker asked for {what!r:.40}, which is not known here")
        return None


async def _give(process: trio.Process, orders: Orders) -> None:
    assert process.stdin is not None  # noqa: S101
    with suppress(trio.BrokenResourceError):  # it ended before it could be told
        await process.stdin.send_all(orders.to_json())
    await process.stdin.aclose()


async def _end(process: trio.Process, stream: trio.SocketStream) -> None:
    """See to it that a worker is gone: one whose line is cut ends by itself."""
    with trio.CancelScope(shield=True):
        try:
            await trio.aclose_forcefully(stream)
            with trio.move_on_after(GRACE):
                await process.wait()
        finally:  # a second Ctrl-C, which no shield holds back, must not leave it behind
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _died(number: int, status: int) -> str:
    return (
        f"worker {number} ended with status {status} before it could serve; what it said stands "
        "above, and PROXY_WORKERS=1 serves without workers"
    )
