"""`serve` as people start and stop it: the real command, the real Codex."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from attrs import define

from pipeline.cli.main import main
from tests.serve.scripted import CHAT, body
from tests.serve.wire import Wire, post

STARTING = 30.0
ROOT = Path(__file__).parents[2]


@define
class Started:
    """A server in a process of its own."""

    process: trio.Process
    out: str = ""
    err: str = ""

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.out)
        assert found, self.out + self.err
        return int(found[1])

    def children(self) -> list[int]:
        """The processes it has started, and those that they have started."""
        return _descendants(self.process.pid)

    async def wait(self, seconds: float) -> int:
        with trio.fail_after(seconds):
            return await self.process.wait()


def _descendants(pid: int) -> list[int]:
    told: list[str] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            told += thread.read_text(encoding="ascii").split()
    return [one for child in map(int, told) for one in (child, *_descendants(child))]


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


async def until_gone(pids: list[int]) -> None:
    with trio.fail_after(30):
        while any(map(alive, pids)):  # noqa: ASYNC110  (nobody tells when a stranger's child ends)
            await trio.sleep(0.01)


@asynccontextmanager
async def start(
    *flags: str, env: dict[str, str] | None = None, banner: bool = True
) -> AsyncGenerator[Started]:
    """Run the command; with a banner, from the moment it can be used."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    async with trio.open_nursery() as nursery:
        run = partial(
            trio.run_process,
            [sys.executable, "-m", "pipeline", "serve", "--port", "0", *flags],
            check=False,
            cwd=ROOT,
            env={**usual, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process: trio.Process = await nursery.start(run)
        started = Started(process)
        said = trio.Event()

        async def listen(stream: trio.abc.ReceiveStream, name: str) -> None:
            async for data in stream:
                setattr(started, name, getattr(started, name) + data.decode())
                if "stops it" in started.out:
                    said.set()
            said.set()

        assert process.stdout is not None
        assert process.stderr is not None
        nursery.start_soon(listen, process.stdout, "out")
        nursery.start_soon(listen, process.stderr, "err")
        if banner:
            with trio.fail_after(STARTING):
                await said.wait()
        yield started
        process.kill()


async def asking(started: Started, words: str) -> Wire:
    connection = Wire(await trio.open_tcp_stream("127.0.0.1", started.port))
    await connection.write(post(body(words, stream=True)))
    return connection


async def test_a_demo_starts_serves_and_ends_at_a_signal() -> None:
    async with start("--demo", env={"PROXY_SHUTDOWN_GRACE_S": "0.2"}) as server:
        for fact in ("output mode auto", "none needed on this address", "scripted model", "curl"):
            assert fact in server.out
        (line,) = re.findall(r"-d '(.*)'", server.out)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            answer = await client.post(CHAT, content=line)
            assert answer.text.endswith("data: [DONE]\n\n")
            assert "Hello!" in (await client.post(CHAT, json=body("Hello!"))).text
        hanging = await asking(server, "HANG")
        await hanging.read_until(b'"Wait"')
        children = server.children()
        assert children
        server.process.send_signal(signal.SIGTERM)
        rest = await hanging.read_until(b"[DONE]\n\n")
        assert b"server_is_overloaded" in rest
        assert await hanging.ended()
        await hanging.stream.aclose()
        assert await server.wait(6) == 0
        await until_gone(children)
    assert "Traceback" not in server.err


async def test_a_second_signal_ends_it_at_once() -> None:
    async with start("--demo", env={"PROXY_SHUTDOWN_GRACE_S": "600"}) as server:
        hanging = await asking(server, "HANG")
        await hanging.read_until(b'"Wait"')
        children = server.children()
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            while "press Ctrl-C again" not in server.err:  # noqa: ASYNC110  (text that grows)
                await trio.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert await server.wait(6) == 0
        await hanging.stream.aclose()
        await until_gone(children)
    assert "Traceback" not in server.err


async def test_a_signal_while_it_starts_ends_it_too(tmp_path: Path) -> None:
    mute = tmp_path / "codex"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o700)
    async with start(env={"CODEX_BIN": str(mute), "HOME": str(tmp_path)}, banner=False) as server:
        with trio.fail_after(STARTING):
            while "starting app-server" not in server.err:  # noqa: ASYNC110  (text that grows)
                await trio.sleep(0.01)
        children = server.children()
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait(6) == 0
        await until_gone(children)
    assert server.out == ""
    assert "Traceback" not in server.err


# -- what cannot be --------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that `serve` leaves with."""
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("pipeline: ")]
    assert (out, len(lines)) == ("", 1)
    assert "Traceback" not in err
    return lines[0]


def test_a_port_in_use_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal(capsys, "--demo", "--port", str(port))
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "no.such.host.invalid"], "PROXY_API_KEYS must be set"),
        (["--host", "0.0.0.0"], "PROXY_API_KEYS must be set"),  # noqa: S104
        (["--host", "0.0.0.0", "--api-keys", "me:secret"], "easy to guess"),  # noqa: S104
        (["--port", "99999"], "PROXY_PORT must be a whole number from 0 to 65535 (got 99999)"),
        (["--dump-events", "/nowhere/at/all"], "CODEX_DUMP_SSE=/nowhere/at/all cannot be written"),
    ],
)
def test_an_unusable_address_is_reported_in_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROXY_API_KEYS", raising=False)
    assert words in refusal(capsys, "--demo", "--port", "0", *arguments)


def test_an_invalid_host_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_API_KEYS", "me:k7Qz-2m9Xw-41bVtRp8LcYd")
    assert "is no address" in refusal(capsys, "--demo", "--host", "no such host")


def test_without_a_login_it_says_how_to_log_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CODEX_HOME", "OPENAI_API_KEY", "CODEX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    line = refusal(capsys, "--port", "0")
    assert "codex login" in line
    assert "serve --demo" in line


def test_it_allows_itself_as_many_connections_as_the_system_does() -> None:
    program = (
        "import resource as r\n"
        "from pipeline.assembly.serving import raise_file_limit\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 700))\n"
        "raise_file_limit()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(700, 700)\n"
