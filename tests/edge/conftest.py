"""The server as people start it, with the real Codex behind it, and the clients that talk to it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeAlias

import pytest
from attrs import frozen

from tests.support.codex_binaries import binary_of

from .relay import Exchange, Relay

__all__ = ["binary_of"]  # a fixture

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "node"
KEPT: Final = ROOT / ".cache" / "edge"
KEY: Final = "sk-edge-b1946ac92492d2347c6235b4d2611184"
FEW: Final = "3"
"""How many turns run at once: a turn that outlived its client would soon leave room for none."""
OFTEN: Final = "0.3"
"""After how many seconds a silence is broken: clients must take it, and Codex waits for it."""
LONG_ENOUGH: Final = 60.0
UNPACK: Final = """
const { default: chromium } = await import("@sparticuz/chromium");
await chromium.executablePath();
"""


# -- the server ------------------------------------------------------------------------------------


@frozen
class Server:
    """Where it listens, and the key that it wants to see."""

    url: str
    key: str = KEY


class Banner:
    """Reads what the server writes, to its end, so that it never waits for a reader."""

    def __init__(self, output: IO[str]) -> None:
        self.text = ""
        self.url = ""
        self._output = output
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._output:
            self.text += line
            if found := re.search(r"API\s+(http://\S+/v1)", line):
                self.url = found[1]
                self._known.set()
        self._known.set()

    def wait(self) -> str:
        """The address that it tells, or nothing when it ended or took too long."""
        self._known.wait(LONG_ENOUGH)
        return self.url

    def end(self) -> None:
        self._thread.join(LONG_ENOUGH)
        self._output.close()


@contextmanager
def serving(**settings: str) -> Generator[Server]:
    """`serve --demo` on a free port, with a key and whatever settings are given."""
    usual = {
        "PROXY_API_KEYS": f"edge:{KEY}",
        "PROXY_CONCURRENCY": FEW,
        "PROXY_PING_INTERVAL_S": OFTEN,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "serve", "--demo", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, **usual, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    banner = Banner(process.stdout)
    try:
        url = banner.wait()
        assert url, f"the server did not start:\n{banner.text}"
        yield Server(url)
    finally:
        process.terminate()
        try:
            process.wait(LONG_ENOUGH)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        banner.end()
    assert process.returncode == 0, f"the server did not end well:\n{banner.text[-5000:]}"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all the tests."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def relay(server: Server) -> Iterator[Relay]:
    """What stands before it, for tests that want to know what was said."""
    with Relay(server.url).running() as relay:
        yield relay


@pytest.fixture(scope="session")
def without_sockets() -> Iterator[Relay]:
    """The same before a server that speaks no WebSocket."""
    with serving(PROXY_RESPONSES_WEBSOCKET="0") as server, Relay(server.url).running() as relay:
        yield relay


@pytest.fixture(autouse=True)
def _streams_are_in_order(  # pyright: ignore[reportUnusedFunction]
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Whatever a client made of it: each stream is one that every client would take."""
    used = {"relay", "without_sockets"} & {*request.fixturenames}
    relays: list[Relay] = [request.getfixturevalue(name) for name in used]
    marks = [relay.mark() for relay in relays]
    yield
    for relay, mark in zip(relays, marks, strict=True):
        for told in relay.since(mark):
            told.check()


# -- the clients that run on Node ------------------------------------------------------------------


def _do_without(what: str) -> NoReturn:
    """Where a client cannot be had, a person's test run goes on; CI's does not."""
    if "CI" in os.environ:
        pytest.fail(what)
    pytest.skip(what)


def _run(command: list[str], folder: Path, seconds: float, **env: str) -> str:
    """Why a command failed, or nothing."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{command[0]}: {done.stderr.strip()[-500:]}" if done.returncode else ""


def _install(folder: Path) -> str:
    """Why the pinned packages could not be installed, or nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    chromium = folder / "chromium"
    chromium.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(SCRIPTS / name, folder)
    return (
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, 300)
        # Believing itself on a cloud function, the package unpacks its shared libraries too, all
        # into the temporary folder: with those the browser needs nothing but libc of the machine.
        or _run(
            ["node", "--input-type=module", "--eval", UNPACK],
            folder,
            60,
            TMPDIR=str(chromium),
            AWS_EXECUTION_ENV="AWS_Lambda_nodejs20.x",
        )
    )


@pytest.fixture(scope="session")
def node() -> Path:
    """A folder with the scripts and with the packages of the lock file, installed once."""
    pinned = (SCRIPTS / "package-lock.json").read_bytes()
    folder = KEPT / f"node-{hashlib.sha256(pinned).hexdigest()[:16]}"
    ready = folder / ".ready"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of the tests at once install them once
        if not ready.exists():
            for old in KEPT.glob("node-*"):
                shutil.rmtree(old)
            if problem := _install(folder):
                _do_without(problem)
            ready.touch()
        for script in SCRIPTS.glob("*.mjs"):
            shutil.copy(script, folder)
    return folder


@pytest.fixture(scope="session")
def chromium(node: Path) -> Path:
    """The folder with the browser and its libraries; the package has it for one kind of machine."""
    folder = node / "chromium"
    libraries = str(folder / "al2023" / "lib")
    command = [str(folder / "chromium"), "--version"]
    if problem := _run(command, folder, LONG_ENOUGH, LD_LIBRARY_PATH=libraries):
        _do_without(problem)
    return folder


@frozen
class Told:
    """What a client understood of each scenario that it came to the end of."""

    scenarios: dict[str, Any]
    stderr: str
    exchanges: list[Exchange]
    """All that it asked for, in all of them."""

    def __getitem__(self, scenario: str) -> Any:
        assert scenario in self.scenarios, f"it never told of {scenario}:\n{self.stderr}"
        told = self.scenarios[scenario]
        assert "broke" not in told, told["broke"]
        return told


Play: TypeAlias = Callable[..., Told]


@pytest.fixture(scope="session")
def play(node: Path, relay: Relay) -> Play:
    """Lets a client on Node play all of its scenarios, once: most of the time goes into starting.

    The scenarios that it did not come to are left out.
    """

    @cache
    def run(script: str, *words: str) -> Told:
        command = ["node", script, *words]
        mark = relay.mark()
        places = {"EDGE_BASE_URL": relay.url, "EDGE_API_KEY": KEY}
        try:
            done = subprocess.run(  # noqa: S603
                command,
                cwd=node,
                env={**os.environ, **places},
                capture_output=True,
                check=False,
                timeout=LONG_ENOUGH,
            )
            output, stderr = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            output, stderr = late.stdout or b"", b"it took too long"
        lines = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
        return Told(dict(map(json.loads, lines)), stderr.decode(), relay.since(mark))

    return run
