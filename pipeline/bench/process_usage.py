"""What a process has used, by the kernel's own books."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from attrs import frozen

from pipeline.errors import UsageError

_CPUCLOCK_SCHED: Final = 2
"""The kernel's name for the clock of all time that a process ran, exact to the nanosecond."""


@frozen
class ProcessUsage:
    """One process, looked at from outside: it is not asked, so it does nothing for the answer."""

    pid: int

    def cpu(self) -> float:
        """The CPU seconds of all its threads so far."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def memory(self) -> int:
        """Its resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0  # it has just ended

    def files(self) -> int:
        """How many files and sockets it has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def wakeups(self) -> int:
        """How often it gave up the processor by itself: an idle process does not."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
        return 0


def check_platform() -> None:
    """UsageError where processes are not accounted for in a way that we can read."""
    if sys.platform != "linux":
        raise UsageError(
            "bench reads what processes cost from Linux's own books, and this is "
            f"{sys.platform}; `bench stages` runs everywhere"
        )
