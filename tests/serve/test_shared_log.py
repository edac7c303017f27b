"""The log of several processes that write to one place."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
from collections import Counter
from time import monotonic, sleep

import pytest
import structlog

from pipeline.serve.observe import logs
from pipeline.serve.observe.logs import PATIENCE, SharedLog

LINES, WRITERS = 150, 4
WRITER = f"""
import sys, structlog
from pipeline.serve.observe import logs
number = int(sys.argv[1])
logs.configure(logs.LogOptions(log_format="json"), worker=number)
log = structlog.get_logger()
sys.stdin.read()  # until all may begin
for count in range({LINES}):
    log.info("a line", content=str(number) * (20_000 if count % 2 else 20))
"""


def test_lines_of_several_processes_are_whole_however_long_they_are() -> None:
    reading, writing = os.pipe()
    waiting, begin = os.pipe()
    command = (sys.executable, "-c", WRITER)
    writers = [
        subprocess.Popen([*command, str(number)], stdin=waiting, stderr=writing)  # noqa: S603
        for number in range(1, WRITERS + 1)
    ]
    sleep(0.5)  # they have started by then
    for end in (waiting, writing, begin):
        os.close(end)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123
        lines = [json.loads(line) for line in pipe]
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    assert Counter(line["worker"] for line in lines) == dict.fromkeys(range(1, WRITERS + 1), LINES)
    assert all(set(line["content"]) == {str(line["worker"])} for line in lines)


def test_a_process_that_never_ends_its_line_is_waited_for_once(tmp_path: object) -> None:
    held = "import fcntl, os; fcntl.lockf(1, fcntl.LOCK_EX); os.close(2); os.read(0, 1)"
    with open(f"{tmp_path}/log", "w+", encoding="utf-8") as file:  # noqa: PTH123
        with subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", held],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.PIPE,
        ) as holder:
            assert holder.stderr is not None
            holder.stderr.read()  # until it has the lock
            log, begun = SharedLog(file), monotonic()
            for _ in range(5):
                log.write("a line\n")
            assert PATIENCE <= monotonic() - begun < 2 * PATIENCE
        file.seek(0)
        assert file.read() == "a line\n" * 5
        log.write("another\n")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_cannot_be_locked_is_written_all_the_same() -> None:
    out = io.StringIO()
    SharedLog(out).write("a line\n")
    assert out.getvalue() == "a line\n"


@pytest.mark.parametrize(
    ("worker", "shared", "locked"), [(0, False, False), (1, False, True), (0, True, True)]
)
def test_a_line_is_locked_only_where_other_processes_write_too(
    worker: int, shared: bool, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks: list[object] = []

    def lock(*request: object) -> None:
        locks.append(request)

    monkeypatch.setattr(fcntl, "lockf", lock)
    out = io.StringIO()
    logs.configure(logs.LogOptions(log_format="json"), out, worker=worker, shared=shared)
    structlog.get_logger().info("a line")
    assert out.getvalue().count("\n") == 1
    assert bool(locks) is locked
