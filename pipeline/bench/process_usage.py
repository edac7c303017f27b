"""The resource usage of a process, as the kernel counts it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from attrs import frozen

from pipeline.errors import UsageError

_CPUCLOCK_SCHED: Final = 2
"""The kernel's clock of a process's CPU time, with nanosecond resolution."""


@frozen
class ProcessUsage:
    """Observes one process from outside, which costs that process nothing."""

    pid: int

    def cpu(self) -> float:
        """The CPU seconds of all its threads so far."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def memory(self) -> int:
        """Its resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0  # it has just exited

    def files(self) -> int:
        """How many files and sockets it has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def wakeups(self) -> int:
        """The number of its voluntary context switches; an idle process has none."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
        return 0


def check_platform() -> None:
    """UsageError on platforms without Linux's process accounting."""
    if sys.platform != "linux":
        raise UsageError(
            "bench needs the process accounting of Linux, and this is "
            f"{sys.platform}; `bench stages` runs everywhere"
        )
