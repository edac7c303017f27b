"""An app-server's lives: starts, deaths, pauses, replacements, and the pool over several."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pipeline.errors import Failure, ProxyError, UsageError
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.patience import Patience
from sources.app_server.process.pool import Pool, open_pool
from sources.app_server.process.supervisor import AppServer
from sources.app_server.protocol.client import AppServerClient
from sources.app_server.transport import child as child_process
from sources.app_server.transport.stdio import StdioTransport
from sources.app_server.transport.transport import Transport, TransportClosedError
from sources.app_server.turn.place import Place
from sources.demo.chaos_child import QUICK, ChaosChild
from tests.support.chaos_turns import HELLO, failure, play, text


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_zombie(pid: int) -> bool:
    """Whether it has ended, and only its parent does not know yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def program(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


# -- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["!die", "!eof", "!ask-and-die"])
async def test_a_backend_that_dies_fails_its_turns_at_once_and_the_next_request_works(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.1)
    others: list[Failure] = []

    async def wait_for_the_end(child: ChaosChild) -> None:
        others.append(failure(await play(child.pool, "HANG")))

    async with ChaosChild(tmp_path).running() as child:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait_for_the_end, child)
            await child.until(lambda: len(child.told("turn/start")) == 3)
            others.append(failure(await play(child.pool, f"TEXT {fault}")))
        for found in others:
            assert (found.status, found.code) == (503, "server_is_overloaded")
            assert found.retry_after is not None
        assert text(await play(child.pool, "TEXT")) == HELLO
        assert len(child.pids) == 2


async def test_a_backend_killed_while_idle_is_started_again(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        os.kill(child.pids[0], signal.SIGKILL)
        await child.until(lambda: len(child.pids) == 2)
        assert text(await play(child.pool, "TEXT")) == HELLO
        assert child.server.counters["restarts"] == 1


@pytest.mark.parametrize("method", ["thread/start", "thread/inject_items", "turn/start"])
async def test_a_death_at_any_request_is_a_503(tmp_path: Path, method: str) -> None:
    async with ChaosChild(tmp_path, "--die", method).running() as child:
        assert failure(await play(child.pool, "TEXT")).status == 503


async def test_a_backend_that_never_comes_up_is_tried_again_and_says_why(tmp_path: Path) -> None:
    patience = Patience(handshake=0.2, first_pause=0.01)
    child = ChaosChild(tmp_path, "--die", "initialize", patience=patience)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.server.run)
        await child.until(lambda: child.server.counters["restarts"] >= 2)
        found = failure(await play(child.pool, "TEXT"))
        assert (found.status, found.retry_after) == (503, 5.0)
        assert "fake-codex" in found.message
        nursery.cancel_scope.cancel()


async def test_a_backend_that_does_not_introduce_itself_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.1)
    patience = Patience(handshake=0.5, first_pause=0.01)
    child = ChaosChild(tmp_path, "--hang", "initialize", patience=patience)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.server.run)
        await child.until(lambda: child.server.counters["restarts"] >= 1)
        assert child.server.why_not == "initialize was not answered within 0.5 s"
        nursery.cancel_scope.cancel()


# -- pauses --------------------------------------------------------------------------------------


class Failing:
    """A backend whose every start fails, at times that are written down."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    async def connect(self, nursery: trio.Nursery) -> Transport:
        await trio.lowlevel.checkpoint()
        self.starts.append(trio.current_time())
        raise TransportClosedError("no")

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in zip(self.starts, self.starts[1:], strict=False)]


async def run_for(seconds: float, server: AppServer) -> None:
    with trio.move_on_after(seconds):
        await server.run()


async def test_pauses_double_up_to_the_longest(autojump_clock: trio.testing.MockClock) -> None:
    backend = Failing()
    patience = Patience(first_pause=1.0, longest_pause=8.0, window=1000.0)
    await run_for(60.0, AppServer("x", backend.connect, ".", patience))
    for pause, most in zip(backend.pauses[:6], [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= pause <= most


async def test_ends_of_long_ago_make_no_pause_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With a window that holds two ends at most, no pause gets longer than the second."""
    backend = Failing()
    patience = Patience(first_pause=1.0, longest_pause=100.0, window=1.5)
    await run_for(200.0, AppServer("x", backend.connect, ".", patience))
    assert len(backend.pauses) > 50
    assert max(backend.pauses) <= 4.0


async def test_a_request_that_waits_is_served_by_the_first_life_that_works(
    tmp_path: Path,
) -> None:
    child = ChaosChild(tmp_path)
    failing, tries = Failing(), 0

    async def connect(nursery: trio.Nursery) -> Transport:
        nonlocal tries
        tries += 1
        return await (failing if tries < 3 else child).connect(nursery)

    server = AppServer("x", connect, str(tmp_path), Patience(first_pause=0.01))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        assert text(await play(Pool([server]), "TEXT")) == HELLO
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_not_ready_says_so_after_its_patience(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = AppServer("x", Failing().connect, ".")
    with pytest.raises(ProxyError, match="it has not been started yet") as raised:
        await Pool([server], patience=3.0).lease()
    assert raised.value.failure.status == 503


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["HANG", "!endless"])
async def test_a_backend_leaves_in_peace_when_it_is_no_longer_wanted(
    tmp_path: Path, words: str
) -> None:
    with trio.fail_after(child_process.GRACE):  # so it was not forced
        async with ChaosChild(tmp_path).running() as child, trio.open_nursery() as nursery:
            nursery.start_soon(play, child.pool, words)
            await child.until(lambda: child.told("turn/start"))
            nursery.cancel_scope.cancel()
    assert not lives(child.pids[0])


async def test_a_backend_that_does_not_leave_is_killed_after_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.1)
    with trio.fail_after(30):
        async with ChaosChild(tmp_path, "--stubborn").running() as child:
            assert lives(child.pids[0])
    assert not lives(child.pids[0])


async def test_a_backend_that_does_not_leave_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.05)
    codex = program(tmp_path / "codex", "trap '' TERM", "sleep 60 &", "echo $!", "wait", "wait")
    async with trio.open_nursery() as nursery:
        transport = await StdioTransport.start(nursery, [codex], env=os.environ, cwd=str(tmp_path))
        (line,) = await transport.receive()
        assert lives(int(line))
        await transport.aclose()
        nursery.cancel_scope.cancel()
    with trio.fail_after(30):
        while lives(int(line)) and not is_zombie(int(line)):  # noqa: ASYNC110 (it is not our child)
            await trio.sleep(0.005)


async def test_an_interruption_of_the_grace_leaves_no_child_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codex = program(tmp_path / "codex", "trap '' TERM", "exec sleep 60")
    async with trio.open_nursery() as nursery:
        transport = await StdioTransport.start(nursery, [codex], env=os.environ, cwd=str(tmp_path))

        async def interrupted(_: StdioTransport) -> None:
            await trio.lowlevel.checkpoint()
            raise KeyboardInterrupt

        monkeypatch.setattr(StdioTransport, "_wait_a_little", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await transport.aclose()
        with trio.fail_after(30):
            assert await transport.process.wait() == -signal.SIGKILL
        nursery.cancel_scope.cancel()


# -- replacement ---------------------------------------------------------------------------------


async def test_a_worn_out_child_is_replaced_and_ends_its_turn_in_peace(tmp_path: Path) -> None:
    patience = Patience(first_pause=0.01, most_turns=1)
    async with ChaosChild(tmp_path, patience=patience).running() as child:
        assert text(await play(child.pool, "TEXT !slow=0.2")) == HELLO
        await child.until(lambda: not lives(child.pids[0]))
        assert text(await play(child.pool, "TEXT")) == HELLO
        assert child.server.counters["restarts"] == 0


async def test_a_turn_that_is_only_starting_is_not_left_by_a_replaced_child(
    tmp_path: Path,
) -> None:
    patience = Patience(first_pause=0.01, most_turns=1)
    flags = ("--delay", "thread/start=1.0")
    async with ChaosChild(tmp_path, *flags, patience=patience).running() as child:
        assert text(await play(child.pool, "TEXT")) == HELLO


def learned_at(place: Place) -> str:
    return place.learned.response_ends


@pytest.mark.parametrize("upgraded", [False, True])
async def test_what_a_codex_was_seen_to_tell_is_known_of_the_next_child_of_the_same_version(
    upgraded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        first = await child.pool.lease()
        assert learned_at(first) == "unknown"
        await play(child.pool, "TEXT")
        seen = learned_at(first)
        assert seen != "unknown"
        if upgraded:
            handshake = AppServerClient.handshake

            async def as_another(self: AppServerClient, *introduction: Any) -> None:
                await handshake(self, *introduction)
                self.user_agent = "another Codex"

            monkeypatch.setattr(AppServerClient, "handshake", as_another)
        os.kill(child.pids[0], signal.SIGKILL)
        await child.until(lambda: not child.server.ready)
        await child.server.until_ready()
        second = await child.pool.lease()
        assert second.client is not first.client
        assert learned_at(second) == ("unknown" if upgraded else seen)


# -- several -------------------------------------------------------------------------------------


async def test_turns_that_come_at_once_are_spread_over_the_pool(tmp_path: Path) -> None:
    children: list[ChaosChild] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        children.append(ChaosChild(tmp_path / name))
    pool = Pool([child.server for child in children])
    async with trio.open_nursery() as nursery:
        for child in children:
            nursery.start_soon(child.server.run)
        for child in children:
            await child.server.until_ready()
        async with trio.open_nursery() as turns:
            for _ in range(10):
                turns.start_soon(play, pool, "TEXT !slow=0.02")
        assert sorted(len(child.told("turn/start")) for child in children) == [5, 5]
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_down_is_left_out(tmp_path: Path) -> None:
    down = AppServer("down", Failing().connect, ".", QUICK)
    async with ChaosChild(tmp_path).running() as child:
        pool = Pool([down, child.server])
        assert text(await play(pool, "TEXT")) == HELLO
        assert "down: it has not been started yet" in pool.why_not


# -- which program -------------------------------------------------------------------------------


async def test_the_fake_takes_the_place_of_a_codex_and_sees_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    codex = program(
        tmp_path / "codex",
        f"env > {tmp_path}/environment",
        f'echo "$@" > {tmp_path}/arguments',
        f'exec {sys.executable} -m pipeline fake-codex "$@"',
    )
    async with open_pool(BackendOptions(codex=codex, patience=QUICK)) as pool:
        assert text(await play(pool, "TEXT")) == HELLO
    assert "sk-secret" not in (tmp_path / "environment").read_text()
    assert "features.shell_tool=false" in (tmp_path / "arguments").read_text()


async def test_a_missing_program_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="CODEX_BIN=no-such-codex: no such program"):
        async with open_pool(BackendOptions(codex="no-such-codex")):
            pass


async def test_a_program_that_cannot_run_is_a_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "codex"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    options = BackendOptions(codex=str(broken), patience=Patience(handshake=0.2))
    async with open_pool(options) as pool:
        found = failure(await play(pool, "TEXT"))
        assert found.status == 503
        assert "codex app-server cannot be started: Exec format error" in found.message


async def test_operators_see_the_stderr_of_a_program_that_is_not_codex(
    tmp_path: Path,
) -> None:
    """Its output may end before its complaint has arrived. Anything may be in it: no client's."""
    complaint = ("exec >&-", "sleep 0.05", "echo 'no such option: -c' >&2", "exit 2")
    codex = program(tmp_path / "codex", *complaint)
    options = BackendOptions(codex=codex, patience=Patience(handshake=0.5, first_pause=0.05))
    with capture_logs() as logs:
        async with open_pool(options) as pool:
            found = failure(await play(pool, "TEXT"))
            assert "exited with status 2; its last words: no such option: -c" in pool.why_not
    assert "codex app-server exited with status 2" in found.message
    assert "no such option" not in found.message
    assert any("no such option: -c" in entry.get("reason", "") for entry in logs)


async def test_clients_of_a_dead_backend_learn_that_but_not_its_stderr(
    tmp_path: Path,
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        found = failure(await play(child.pool, "TEXT !stderr=4000 !die"))
        assert "codex app-server exited with status -9; send the request again" in found.message
        assert "last words" not in found.message
        await child.until(lambda: "its last words: " in child.pool.why_not)


async def test_an_error_behind_an_open_backend_comes_out_as_it_was_raised(tmp_path: Path) -> None:
    codex = program(tmp_path / "codex", "exec sleep 10")
    with pytest.raises(ValueError, match="mine"):
        async with open_pool(BackendOptions(codex=codex)):
            raise ValueError("mine")


async def test_a_home_that_does_not_exist_yet_is_made(tmp_path: Path) -> None:
    codex = program(tmp_path / "codex", "exit 1")
    home = tmp_path / "not" / "there"
    async with open_pool(BackendOptions(codex=codex, home=home)):
        assert home.is_dir()
