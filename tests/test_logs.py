"""What operators read of their app-servers, and where commands put it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.cli.logs import warnings_to_stderr
from pipeline.cli.main import main
from sources.app_server.process.patience import Patience
from sources.app_server.process.supervisor import AppServer
from sources.app_server.protocol.client import DECLINED
from sources.app_server.transport.transport import Transport, TransportClosedError
from sources.demo.chaos_child import ChaosChild
from tests.support.chaos_turns import HELLO, play, text


def events(logs: list[Any]) -> list[tuple[str, str]]:
    """Levels and events, in order."""
    return [(entry["log_level"], entry["event"]) for entry in logs]


# -- what is logged --------------------------------------------------------------------------------


async def test_what_was_declined_is_logged_by_its_kind_and_place_and_without_its_content(
    tmp_path: Path,
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        with capture_logs() as logs:
            await play(child.pool, "TEXT !approve")
        (started,) = child.told("turn/start")
    assert [entry["method"] for entry in logs] == [*DECLINED, "currentTime/read"]
    for entry in logs:
        assert entry.keys() == {"event", "log_level", "server", "method", "thread", "turn"}
        assert (entry["log_level"], entry["thread"]) == ("warning", started["threadId"])
        assert entry["turn"]


async def test_a_tool_call_that_comes_late_is_no_warning(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        with capture_logs() as logs:
            await play(child.pool, "ONECALL !late", recipe=assembly.recipe(Settings()))
            await child.until(lambda: logs)
    assert [(entry["log_level"], entry["method"]) for entry in logs] == [
        ("debug", "item/tool/call")
    ]


async def test_a_start_and_a_restart_are_logged_with_the_reason(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with ChaosChild(tmp_path).running() as child:
            os.kill(child.pids[0], signal.SIGKILL)
            await child.until(lambda: len(child.pids) == 2)
            await child.server.until_ready()
    assert events(logs) == [
        ("info", "starting app-server"),
        ("info", "app-server is ready"),
        ("warning", "app-server exited and will be restarted"),
        ("info", "starting app-server"),
        ("info", "app-server is ready"),
    ]
    assert "exited with status -9" in logs[2]["reason"]
    assert {entry["server"] for entry in logs} == {"fake-codex"}


async def test_a_replacement_is_logged_and_is_no_warning(tmp_path: Path) -> None:
    patience = Patience(first_pause=0.01, most_turns=1)
    async with ChaosChild(tmp_path, patience=patience).running() as child:
        with capture_logs() as logs:
            assert text(await play(child.pool, "TEXT !slow=0.05")) == HELLO
            await child.until(lambda: len(logs) == 4)
    assert events(logs) == [
        ("info", "app-server will be recycled"),
        ("info", "starting app-server"),
        ("info", "app-server is ready"),
        ("info", "app-server was replaced"),
    ]
    assert (logs[0]["turns"], logs[3]["turns"]) == (1, 1)


async def test_a_server_that_cannot_be_reached_is_logged_at_every_try(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def connect(nursery: trio.Nursery) -> Transport:
        await trio.lowlevel.checkpoint()
        raise TransportClosedError("cannot connect to ws://127.0.0.1:9")

    with capture_logs() as logs, trio.move_on_after(1.0):
        await AppServer("remote", connect, ".", Patience(first_pause=0.3)).run()
    left = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(left) >= 2
    assert left[0]["reason"] == "cannot connect to ws://127.0.0.1:9"
    assert left[0]["pause"] <= 0.3


# -- where it goes ---------------------------------------------------------------------------------


def test_a_command_writes_its_warnings_to_standard_error_and_nothing_to_its_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["stages"])
    capsys.readouterr()
    log = structlog.get_logger("some.module")
    log.info("all is well")
    log.warning("something is amiss", method="x")
    out, err = capsys.readouterr()
    assert out == ""
    assert "something is amiss" in err
    assert "all is well" not in err


def test_who_has_set_up_the_log_keeps_it() -> None:
    structlog.configure(processors=[])
    warnings_to_stderr()
    assert structlog.get_config()["processors"] == []
