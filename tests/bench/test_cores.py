"""A core of its own for one process, and the others for the rest, for as long as it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from pipeline.bench.cores import own_core

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="a process cannot have a core of its own where there is one, or none can be chosen",
)
WITH_A_THREAD = """
import subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def family() -> Generator[tuple[int, int]]:
    """A process with two threads, and its child."""
    command = [sys.executable, "-c", WITH_A_THREAD]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate(b"\n", timeout=20)


def threads(pid: int) -> list[set[int]]:
    folder = Path(f"/proc/{pid}/task")
    return [os.sched_getaffinity(int(thread.name)) for thread in folder.iterdir()]


def test_one_process_has_a_core_to_itself_and_then_as_before(family: tuple[int, int]) -> None:
    parent, child = family
    cores = os.sched_getaffinity(0)
    with own_core(parent):
        (mine,) = {frozenset(one) for one in threads(parent)}
        assert len(threads(parent)) == 2
        assert len(mine) == 1
        assert threads(child) == [cores - mine]
        assert os.sched_getaffinity(0) == cores - mine
    for pid in (parent, child, os.getpid()):
        assert all(one == cores for one in threads(pid))
