"""Restricts the CPU cores of a benchmark's processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PROCESSES: Final = Path("/proc")


@contextmanager
def own_core(pid: int) -> Generator[None]:
    """Give one process its own core; all other processes of the benchmark share the rest."""
    cores = sorted(os.sched_getaffinity(0))
    family = {os.getpid(), *_descendants(os.getpid())}
    try:
        _confine(family - {pid}, cores[:-1])
        _confine([pid], cores[-1:])
        yield
    finally:
        _confine(family, cores)


def _descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it has exited
            after_name = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2]
            parents[int(folder.name)] = int(after_name.split()[1])
    found: set[int] = set()
    newer = {pid}
    while newer:
        newer = {child for child, parent in parents.items() if parent in newer} - found
        found |= newer
    return found


def _confine(processes: Iterable[int], cores: Collection[int]) -> None:
    """Restrict all threads of some processes to these cores."""
    for pid in processes:
        with suppress(OSError):
            for thread in (PROCESSES / str(pid) / "task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
