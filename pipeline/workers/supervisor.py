"""Starts the workers, restarts those that end, and stops them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from math import ceil
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog
import trio
from attrs import evolve, frozen

from pipeline.config import Settings
from pipeline.errors import UsageError, only_member
from pipeline.loose_json import Json
from pipeline.serve.access.auth import Keys, check_exposure
from pipeline.serve.backends import choose_codex
from pipeline.serve.http.listening import LAST_WORDS, bind
from pipeline.serve.memory.peers import SUPERVISOR, Peers
from pipeline.serve.memory.sqlite import IN_MEMORY, WAIT_FOR_LOCK, prepare_store
from pipeline.serve.observe.metrics import backend_exposition
from pipeline.serve.running import store_path, url_of
from pipeline.workers import ipc
from pipeline.workers.app_servers import lease
from pipeline.workers.worker import UNUSABLE, WorkerConfig
from sources.app_server.process.patience import Patience, Pauses
from sources.app_server.process.pool import open_children
from sources.app_server.process.supervisor import AppServer

COMMAND: Final = (sys.executable, "-m", "pipeline.workers.worker")
PREFIX: Final = "codex-sluice-"
MEMORY: Final = "/dev/shm"  # noqa: S108
GRACE: Final = 3.0
"""Seconds that a worker may take to exit before it is killed."""
DIVIDED: Final = (
    "concurrency",
    "concurrency_per_key",
    "queue_size",
    "requests_per_minute",
    "codex_hold_turns_max",
)
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def share_of(settings: Settings, store: str) -> Settings:
    """The settings of one worker: each limit divided by their number and rounded up."""
    shares: dict[str, Any] = {
        name: ceil(getattr(settings, name) / settings.workers) for name in DIVIDED
    }
    return evolve(settings, store=store, **shares)


class Supervisor:
    """Keeps workers running until they are stopped."""

    def __init__(self, config: WorkerConfig, servers: Sequence[AppServer]) -> None:
        """`config` is the same for every worker except its number."""
        self._config = config
        self._servers = servers
        self._counters: Counter[str] = Counter()
        self._processes: dict[int, trio.Process] = {}
        self._problems: dict[int, str] = {}
        """Why a worker could not serve, as it reported."""
        numbers = range(1, config.settings.workers + 1)
        self._ready = {number: trio.Event() for number in numbers}
        """Set once the worker is ready."""
        self._stopping = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Started when all workers are ready; ends when all have been stopped."""
        socket = Peers(SUPERVISOR, Path(self._config.folder)).socket
        async with trio.open_nursery() as messages:
            await messages.start(ipc.serve, socket, self._handle)
            async with trio.open_nursery() as nursery:
                for number in self._ready:
                    nursery.start_soon(self._keep_running, number)
                for ready in self._ready.values():
                    await ready.wait()
                task_status.started()
            messages.cancel_scope.cancel()

    def stop(self) -> None:
        """Let each worker finish its running requests and exit."""
        self._stopping.set()
        for process in self._processes.values():
            process.terminate()

    async def _keep_running(self, number: int) -> None:
        """Run a process and restart it when it exits; UsageError if it was never ready."""
        pauses = Pauses(Patience())
        while not self._stopping.is_set():
            status = await self._run_process(number)
            if self._stopping.is_set():
                return
            problem, ended = self._problems.pop(number, ""), f"exited with status {status}"
            if not self._ready[number].is_set():
                died = f"a worker {ended} before it was ready; see its output above"
                raise UsageError(problem or died)
            pause = pauses.next()
            self._counters["worker restarts"] += 1
            _log.error(
                "a worker exited and will be restarted",
                worker=number,
                reason=problem or f"it {ended}",
                pause=round(pause, 2),
            )
            with trio.move_on_after(pause):
                await self._stopping.wait()

    async def _run_process(self, number: int) -> int:
        """Its exit status."""
        try:
            process = await trio.lowlevel.open_process(
                list(COMMAND),
                stdin=subprocess.PIPE,
                pass_fds=self._config.listeners,
                start_new_session=True,  # the supervisor handles a Ctrl-C in the terminal
            )
        except OSError as error:
            self._problems[number] = f"a worker cannot be started: {error.strerror}"
            return UNUSABLE
        assert process.stdin is not None  # noqa: S101
        self._processes[number] = process
        try:
            with suppress(trio.BrokenResourceError):  # it has already exited
                await process.stdin.send_all(evolve(self._config, number=number).to_json() + b"\n")
            if self._stopping.is_set():
                process.terminate()
            return await process.wait()
        finally:
            del self._processes[number]
            await _end(process, process.stdin)

    async def _handle(self, connection: ipc.Connection, message: Json) -> object:
        match message:
            case {"kind": "lease", "server": int(number)}:
                return await lease(self._servers[number], connection)
            case {"kind": "ready", "worker": number, "pid": pid}:
                _log.info("a worker is ready", worker=number, pid=pid)
                self._ready[number].set()
            case {"kind": "failed", "worker": number, "reason": reason}:
                self._problems[number] = reason
            case {"kind": "metrics"}:
                counted = sum((server.counters for server in self._servers), self._counters.copy())
                return {"name": SUPERVISOR, "text": backend_exposition(counted).decode()}
            case _:
                pass
        return False  # the supervisor runs no responses and has nothing else to report


async def _end(process: trio.Process, stdin: trio.abc.SendStream) -> None:
    """Stop a worker at once: it exits by itself when its standard input is closed."""
    with trio.CancelScope(shield=True):
        await stdin.aclose()
        with trio.move_on_after(GRACE):
            await process.wait()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@frozen
class RunningWorkers:
    """Running workers: their URL, without /v1, and the backend's name."""

    url: str
    backend: str


@asynccontextmanager
async def serving(settings: Settings, *, demo: bool = False) -> AsyncGenerator[RunningWorkers]:
    """Serve until the block is left; then running requests get a grace period to finish.

    UsageError says why that is not possible, as the first failing worker reported.
    """
    check_exposure(settings.host, Keys.from_settings(settings))
    sockets = bind(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.enter_context(listener)
        # Only this user can enter it. Codex puts its socket there, or a link to it.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX)))
        store = store_path(settings, demo=demo)
        if store == IN_MEMORY:
            store = stack.enter_context(temporary_store(settings.store_mb))
        await prepare_store(store)
        shared = share_of(settings, store)
        if demo:
            shared = evolve(shared, backend="", codex_app_server="stdio")
        servers, name = list[AppServer](), shared.backend
        if not shared.backend:
            chosen = await stack.enter_async_context(choose_codex(settings, demo=demo))
            servers, name = (
                await stack.enter_async_context(open_children(chosen.options, folder)),
                chosen.name,
            )
        listeners = [listener.fileno() for listener in sockets]
        supervisor = Supervisor(WorkerConfig(0, shared, listeners, str(folder)), servers)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(supervisor.run)
                yield RunningWorkers(url_of(settings.host, sockets), name)
                for listener in sockets:
                    listener.close()  # new connections are refused
                supervisor.stop()
                longest = settings.shutdown_grace + LAST_WORDS + WAIT_FOR_LOCK + GRACE
                nursery.cancel_scope.deadline = trio.current_time() + longest
        except BaseExceptionGroup as group:
            raise only_member(group) from None


@contextmanager
def temporary_store(megabytes: float) -> Generator[str]:
    """A file for all workers, deleted at the end; in memory, if /dev/shm has enough room."""
    needed = 2 * megabytes * 1_000_000  # with its index and its journal
    usable = Path(MEMORY).is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)
    in_memory = usable and disk_usage(MEMORY).free >= needed
    with TemporaryDirectory(prefix=PREFIX, dir=MEMORY if in_memory else None) as folder:
        yield str(Path(folder) / "responses.sqlite3")
