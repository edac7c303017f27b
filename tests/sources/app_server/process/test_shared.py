"""One fake app-server that several processes use: replaced, killed, gone, and never in the way."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
import trio
from attrs import evolve

from pipeline.errors import ProxyError
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.patience import Patience
from sources.app_server.process.pool import Pool
from tests.support.chaos_turns import HELLO, failure, play, text
from tests.support.fake_listening import fake_codex, pids
from tests.support.sharing import Sharing, sharing

HURRY = Patience(handshake=10.0, first_pause=0.02)
SOON = 8.0


@pytest.fixture
def options(tmp_path: Path) -> BackendOptions:
    return BackendOptions(codex=fake_codex(tmp_path), patience=HURRY)


def ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


async def until_ended(*gone: int) -> None:
    with trio.fail_after(SOON):
        while not all(map(ended, gone)):  # noqa: ASYNC110  (nobody tells when a stranger ends)
            await trio.sleep(0.01)


async def say_hello(pool: Pool, times: int) -> None:
    for _ in range(times):
        assert text(await play(pool, "TEXT")) == HELLO


def restarts(all_of: Sharing) -> int:
    servers = [all_of.server, *(pool.servers[0] for pool in all_of.pools)]
    return sum(server.counters["restarts"] for server in servers)


async def test_two_use_one_app_server_at_once(options: BackendOptions, tmp_path: Path) -> None:
    async with sharing(options) as both, trio.open_nursery() as nursery:
        for pool in both.pools:
            nursery.start_soon(say_hello, pool, 3)
    assert len(pids(tmp_path)) == 1
    await until_ended(*pids(tmp_path))


def folders_in(place: Path) -> list[Path]:
    return list(place.glob("codex-sluice-*"))


async def test_who_uses_it_needs_no_folder_of_its_own(
    options: BackendOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with sharing(options) as both:
        await say_hello(both.pools[0], 1)
        assert not folders_in(tmp_path)


async def test_only_its_owner_can_reach_its_socket(options: BackendOptions) -> None:
    async with sharing(options, 1) as alone:
        await say_hello(alone.pools[0], 1)
        assert alone.folder.stat().st_mode & 0o777 == 0o700
        assert alone.socket.parent == alone.folder


@pytest.mark.parametrize(("folder", "left"), [("codex-daemon-7", 0), ("elsewhere", 2)])
async def test_only_the_own_socket_that_codex_has_elsewhere_is_removed(
    options: BackendOptions, tmp_path: Path, folder: str, left: int
) -> None:
    theirs = tmp_path / folder / "0a1b"
    theirs.parent.mkdir()
    async with sharing(options, 1) as alone:
        await say_hello(alone.pools[0], 1)
        socket = alone.socket
        socket.rename(theirs)
        socket.symlink_to(theirs)
        theirs.with_name("0a1b.lock").touch()
    assert not socket.is_symlink()
    assert len(list(theirs.parent.iterdir())) == left


async def test_it_is_replaced_again_and_again_and_no_turn_fails(
    options: BackendOptions, tmp_path: Path
) -> None:
    worn_soon = evolve(options, patience=evolve(HURRY, most_turns=4))
    async with sharing(worn_soon) as both:
        replaced = both.server.counters

        async def keep_busy(pool: Pool) -> None:
            while replaced["replaced"] < 3:
                await say_hello(pool, 1)

        with trio.fail_after(2 * SOON):
            async with trio.open_nursery() as nursery:
                for pool in (*both.pools, *both.pools):
                    nursery.start_soon(keep_busy, pool)
        assert restarts(both) == 0
        await until_ended(*pids(tmp_path)[:-2])  # the last may still be coming up
    await until_ended(*pids(tmp_path))


async def test_a_turn_that_runs_while_it_is_replaced_ends_in_peace(
    options: BackendOptions, tmp_path: Path
) -> None:
    worn_at_once = evolve(options, patience=evolve(HURRY, most_turns=1))
    async with sharing(worn_at_once) as both:
        one, other = both.pools
        slow: list[str] = []

        async def take_time() -> None:
            slow.append(text(await play(one, "TEXT !slow=0.15")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_time)
            with trio.fail_after(SOON):
                while len(pids(tmp_path)) < 2:  # noqa: ASYNC110  (a file that grows)
                    await trio.sleep(0.01)
            await say_hello(other, 1)
            assert not ended(pids(tmp_path)[0])
        assert slow == [HELLO]
        await until_ended(pids(tmp_path)[0])


async def test_one_that_is_killed_fails_its_turns_and_is_started_again_for_all(
    options: BackendOptions, tmp_path: Path
) -> None:
    async with sharing(options) as both:
        for pool in both.pools:
            await say_hello(pool, 1)
        failures: list[str] = []

        async def hang(pool: Pool) -> None:
            failures.append(failure(await play(pool, "HANG")).message)

        async with trio.open_nursery() as nursery:
            for pool in both.pools:
                nursery.start_soon(hang, pool)
            with trio.fail_after(SOON):
                while sum(pool.servers[0].load for pool in both.pools) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            os.kill(both.child.process.pid, signal.SIGKILL)
        assert len(failures) == 2
        assert not any(str(both.folder) in message for message in failures), "a path is private"
        for pool in both.pools:
            await say_hello(pool, 1)
    assert len(pids(tmp_path)) == 2


async def test_one_that_cannot_start_is_reported_with_its_stderr(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no config today >&2\nexit 7\n")
    broken.chmod(0o755)
    patience = Patience(handshake=1.0, first_pause=0.05)
    async with sharing(BackendOptions(codex=str(broken), patience=patience), 1) as alone:
        (pool,) = alone.pools
        with trio.fail_after(SOON):
            while "no config today" not in pool.why_not:  # noqa: ASYNC110  (told from elsewhere)
                await trio.sleep(0.01)
        with pytest.raises(ProxyError, match="exited with status 7") as raised:
            await pool.lease()
    assert raised.value.failure.status == 503
    assert "no config today" not in raised.value.failure.message, "these are its operator's"


async def test_it_is_not_asked_which_mcp_servers_it_has(options: BackendOptions) -> None:
    """They were switched off when it was started."""
    async with sharing(options, 1) as alone:
        await say_hello(alone.pools[0], 1)
        assert not (await alone.pools[0].lease()).hides_mcp
