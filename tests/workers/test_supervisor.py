"""What the supervisor provides for its workers, and what a worker makes of silent ones."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from pipeline.assembly import Settings
from pipeline.errors import UsageError, only_member
from pipeline.loose_json import Json
from pipeline.serve.memory.peers import REPLY_WITHIN, Peers
from pipeline.workers import ipc, supervisor
from pipeline.workers.supervisor import Supervisor, share_of, temporary_store
from pipeline.workers.worker import WorkerConfig
from tests.serve.scripted import served
from tests.serve.test_command import alive

SETTINGS = Settings(workers=3, api_keys="me:k7Qz-2m9Xw-41bVtRp8LcYd", output_mode="obsidian-xml")
NOT_UTF8 = Settings(dump_events="\udcff")
LIMITS = ("concurrency", "concurrency_per_key", "queue_size", "requests_per_minute")


# -- what a worker is told -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SETTINGS, NOT_UTF8])
def test_a_config_arrives_as_it_was_sent(settings: Settings) -> None:
    config = WorkerConfig(2, settings, [5, 6], "/folder")
    assert b"\n" not in config.to_json()
    assert WorkerConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(("whole", "part"), [(1, 1), (2, 1), (3, 1), (4, 2), (256, 86), (300, 100)])
def test_a_limit_is_divided_and_rounded_up(whole: int, part: int) -> None:
    of_all = Settings(workers=3, **dict.fromkeys(LIMITS, whole), codex_hold_turns_max=whole)  # type: ignore[arg-type]
    of_one = share_of(of_all, "/somewhere/store")
    divided = [getattr(of_one, name) for name in (*LIMITS, "codex_hold_turns_max")]
    assert divided == [part] * 5
    assert (of_one.store, of_one.store_mb) == ("/somewhere/store", of_all.store_mb)


def test_a_limit_that_is_switched_off_stays_off() -> None:
    of_all = Settings(workers=3, queue_size=0, requests_per_minute=0, codex_hold_turns_max=0)
    of_one = share_of(of_all, "/somewhere/store")
    assert (of_one.queue_size, of_one.requests_per_minute, of_one.codex_hold_turns_max) == (0, 0, 0)


@pytest.mark.parametrize(
    ("memory", "megabytes", "where"),
    [("memory", 1.0, "memory"), ("none", 1.0, "usual"), ("memory", 1e9, "usual")],
    ids=["room", "no such place", "no room"],
)
def test_a_temporary_store_is_in_memory_where_there_is_room(
    memory: str, megabytes: float, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("memory", "usual"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(supervisor, "MEMORY", str(tmp_path / memory))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "usual"))
    with temporary_store(megabytes) as store:
        folder = Path(store).parent
        assert folder.parent == tmp_path / where
        assert folder.stat().st_mode & 0o777 == 0o700
        Path(store).touch()
    assert not folder.exists()


# -- asking the others -----------------------------------------------------------------------------


async def prompt(_: ipc.Connection, message: Json) -> object:
    return {"makes": False, "health": {"turns": 1, "waiting": 0}}.get(message["kind"])


async def silent(_: ipc.Connection, __: Json) -> object:
    return await trio.sleep_forever()


@asynccontextmanager
async def workers(folder: Path, *handlers: ipc.Handler | None) -> AsyncGenerator[Peers]:
    """The first worker; the others answer so, and those without a handler have been killed."""
    async with trio.open_nursery() as nursery:
        for number, handle in enumerate(handlers, 2):
            path = Peers(str(number), folder).socket
            if handle is not None:
                await nursery.start(ipc.serve, path, handle)
            else:
                await left_behind(path)
        yield Peers("1", folder)
        nursery.cancel_scope.cancel()


async def left_behind(path: Path) -> None:
    """The socket of a process that has ended."""
    async with trio.open_nursery() as nursery:
        await nursery.start(ipc.serve, path, prompt)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("others", "replies"),
    [
        ((prompt, prompt), [False, False]),
        ((prompt, None), [False]),
        ((prompt, silent), [False, None]),
    ],
    ids=["all answer", "one is gone", "one is silent"],
)
async def test_one_that_is_gone_is_left_out_and_a_silent_one_is_waited_for(
    others: tuple[ipc.Handler | None, ...],
    replies: list[object],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with workers(tmp_path, *others) as peers:
        begun = trio.current_time()
        assert await peers.ask("makes", id="resp_1") == replies
        waited = REPLY_WITHIN["makes"] if None in replies else 0.0
        assert trio.current_time() - begun == pytest.approx(waited)


async def test_a_health_request_waits_for_no_worker_for_long(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with workers(tmp_path, prompt, silent) as peers:
        begun = trio.current_time()
        assert await peers.ask("health") == [{"turns": 1, "waiting": 0}, None]
        assert trio.current_time() - begun < 1.0


async def test_a_server_in_one_process_has_no_peers_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with workers(Path(), prompt):
        assert await Peers().ask("health") == []


async def test_a_worker_that_does_not_reply_is_reported() -> None:
    async with served(workers=3) as here:
        health = (await here.client.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert health["reason"] == "only 1 of 3 workers reply"


# -- processes -------------------------------------------------------------------------------------

READS = "import sys; sys.stdin.readline()"


async def run(folder: Path, *command: str) -> None:
    """A supervisor of two workers that are not ours."""
    config = WorkerConfig(0, Settings(workers=2), [], str(folder))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(supervisor, "COMMAND", command)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(Supervisor(config, []).run)
        except BaseExceptionGroup as group:
            raise only_member(group) from None


async def test_a_worker_that_exits_before_it_is_ready_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a worker exited with status 7 before it was ready"):
        await run(tmp_path, sys.executable, "-c", f"{READS}; sys.exit(7)")


async def test_a_worker_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a worker cannot be started: No such file or directory"):
        await run(tmp_path, "/no/such/program")


async def test_a_worker_that_does_not_end_at_once_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GRACE", 0.1)
    script = "import os, time; open(f'{sys.argv[1]}/{os.getpid()}', 'x'); time.sleep(600)"
    (tmp_path / "up").mkdir()
    pids: list[int] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            up = str(tmp_path / "up")
            nursery.start_soon(run, tmp_path, sys.executable, "-c", f"{READS}; {script}", up)
            while len(pids) < 2:
                await trio.sleep(0.01)
                pids = [int(file.name) for file in (tmp_path / "up").iterdir()]
            nursery.cancel_scope.cancel()
    assert not any(map(alive, pids))


async def test_a_worker_that_starts_while_all_are_stopped_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-c", f"{READS}; import time; time.sleep(600)")
    monkeypatch.setattr(supervisor, "COMMAND", command)
    late = Supervisor(WorkerConfig(0, Settings(workers=1), [], str(tmp_path)), [])
    late.stop()
    with trio.fail_after(10):
        status = await late._run_process(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert status == -signal.SIGTERM
