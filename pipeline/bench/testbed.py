"""The processes of a benchmark: a server and its backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import trio
from attrs import frozen

from pipeline.bench.direct import Direct
from pipeline.bench.process_usage import ProcessUsage
from pipeline.bench.proxied import Proxied
from pipeline.errors import UsageError

FAST_CODEX: Final = (sys.executable, "-m", "pipeline.bench.fast_codex")
START_TIMEOUT: Final = 30.0
Transport: TypeAlias = Literal["blocks", "lines", "socket"]
"""How the backend writes: available lines together; each line alone, as Codex does; or the same
over a WebSocket on a unix socket."""
SERVER_SETTINGS: Final = {
    "PROXY_PORT": "0",
    "PROXY_STORE": ":memory:",
    "PROXY_CONCURRENCY": "5000",
    "PROXY_CONCURRENCY_PER_KEY": "5000",
    "PROXY_QUEUE_SIZE": "5000",
    "CODEX_RECYCLE_TURNS": "0",
}
"""Settings that admit every load; all others have their defaults."""


@frozen
class ServerTestbed:
    """A server, and a second backend of the same kind for the direct path."""

    server: Proxied
    direct: Direct
    log: Path
    """The log of the server's backend, with times."""
    started: float
    """Seconds until the server listened."""

    @property
    def usage(self) -> ProcessUsage:
        return self.server.usage

    def logged(self, what: str) -> list[Mapping[str, Any]]:
        """The backend's log entries of one kind, such as `interrupted`."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        notes = [msgspec.json.decode(line) for line in lines if line.endswith(b"\n")]
        return [note for note in notes if note["what"] == what]


@asynccontextmanager
async def fake_testbed(transport: Transport) -> AsyncGenerator[ServerTestbed]:
    """A server in front of a backend with almost no CPU cost."""
    writing = "blocks" if transport == "blocks" else "lines"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        log = folder / "backend.jsonl"
        log.touch()
        command = [*FAST_CODEX, "--writing", writing]
        logged = [*command, "--log", str(log)]
        settings = {"CODEX_HOME": str(folder), "CODEX_BIN": _script(folder, logged)}
        if transport == "socket":
            address = f"unix://{folder / 'codex.sock'}"
            child = await stack.enter_async_context(
                running([*logged, "--listen", address], subprocess.DEVNULL)
            )
            await _until_there(folder / "codex.sock", child)
            settings["CODEX_APP_SERVER"] = address
        began = time.monotonic()
        server = await stack.enter_async_context(served(settings))
        started = time.monotonic() - began
        direct = await stack.enter_async_context(Direct.started(command))
        yield ServerTestbed(server, direct, log, started)


def _script(folder: Path, command: list[str]) -> str:
    """An executable file that runs a command, for CODEX_BIN."""
    script = folder / "codex"
    quoted = " ".join(f"'{part}'" for part in command)
    script.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return str(script)


async def _until_there(path: Path, child: trio.Process) -> None:
    with trio.fail_after(START_TIMEOUT):
        while not await trio.Path(path).exists():
            if child.poll() is not None:
                raise UsageError(f"the backend exited at once, with status {child.poll()}")
            await trio.sleep(0.01)


@asynccontextmanager
async def served(settings: Mapping[str, str]) -> AsyncGenerator[Proxied]:
    """The server as a user starts it, without the settings of this process's environment."""
    ours = ("PROXY_", "CODEX_", "PIPELINE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "pipeline", "serve"]
    async with running(
        command, subprocess.PIPE, env={**kept, **SERVER_SETTINGS, **settings}
    ) as process:
        yield Proxied(await _address(process), ProcessUsage(process.pid))


async def _address(process: trio.Process) -> str:
    """The URL that the server prints."""
    assert process.stdout is not None  # noqa: S101
    said = b""
    with trio.fail_after(START_TIMEOUT):
        async for data in process.stdout:
            said += bytes(data)
            if found := re.search(rb"(http://\S+?)/v1\b", said):
                return found[1].decode()
    raise UsageError("the server exited before it listened; try `python -m pipeline serve --demo`")


@asynccontextmanager
async def running(
    command: list[str], stdout: int, env: Mapping[str, str] | None = None
) -> AsyncGenerator[trio.Process]:
    """A child process, terminated at the end, and killed if it does not exit."""
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            with trio.move_on_after(5.0):
                await process.wait()
            process.kill()
            await process.wait()
