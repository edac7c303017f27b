"""Messages of a backend that could not be used: counted by kind and name, logged once a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Generic, Literal, TypeAlias, TypeVar, get_args

import structlog
import trio

from pipeline.loose_json import printable

Kind: TypeAlias = Literal[
    "unknown_event",
    "unreadable_item",
    "unreadable_call",
    "nameless_call",
    "missing_response_end",
]
"""Kinds of problems.

- `unknown_event`: a message of a method or type of no known version.
- `unreadable_item`: a line that is not JSON, text that is not a string, an item of unknown type.
- `unreadable_call`: a tool call whose arguments or form cannot be read.
- `nameless_call`: a tool call without the name of its tool, or without an id.
- `missing_response_end`: a turn that ended without the end of its upstream response.
"""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Report: TypeAlias = Callable[[Kind, str], None]
"""Called with the kind of a problem, and the method or type of the message."""

PREFIX: Final = "problem"
"""The prefix of these counters: `problem <kind> <name>`."""
MOST_NAMES: Final = 40
"""The most names for each kind; further names share one counter."""
LONGEST_NAME: Final = 60
MOST_REFUSALS: Final = 100
INTERVAL: Final = 60.0
OTHER: Final = "other"

Key = TypeVar("Key", bound=Hashable)
_log: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger(__name__)


def unreported(kind: Kind, name: str) -> None:
    """A report that is dropped, as in a replay."""


class RateLimit(Generic[Key]):
    """Allows one log line a minute for each key, and counts the occurrences for it.

    Occurrences in between are counted for the next line.
    """

    def __init__(self, now: Callable[[], float] = trio.current_time) -> None:
        self._now = now
        self._logged: dict[Key, float] = {}
        self._since: Counter[Key] = Counter()

    def count(self, key: Key) -> int:
        """Count one; the number since the last line, or 0 if no line is due."""
        self._since[key] += 1
        now = self._now()
        if key in self._logged and now < self._logged[key] + INTERVAL:
            return 0
        self._logged[key] = now
        return self._since.pop(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._logged

    def __len__(self) -> int:
        return len(self._logged)

    def rest(self) -> dict[Key, int]:
        """Take the counts that were not logged yet."""
        rest, self._since = dict(self._since), Counter()
        return rest


class Problems:
    """One backend's problems. Names are bounded in number and length: the backend chooses them."""

    def __init__(
        self,
        counters: Counter[str] | None = None,
        backend: str = "",
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        """They are counted in `counters`, which may have other counters too."""
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._backend = backend
        self._names: dict[Kind, set[str]] = {kind: set() for kind in KINDS}
        self._kinds: RateLimit[Kind] = RateLimit(now)
        self._refusals: RateLimit[tuple[str, str]] = RateLimit(now)

    def report(self, kind: Kind, name: str) -> None:
        """Count a problem, and log it if a line is due for its kind."""
        name = self._bounded(kind, name)
        self.counters[f"{PREFIX} {kind} {name}"] += 1
        if times := self._kinds.count(kind):
            self._log_problem(kind, times, name)

    def refused(self, method: str, code: str) -> None:
        """The backend answered a request with an error: log it if a line is due."""
        key = (method, code)
        if key not in self._refusals and len(self._refusals) >= MOST_REFUSALS:
            key = (method, OTHER)
        if times := self._refusals.count(key):
            self._log_refusal(*key, times)

    def close(self) -> None:
        """The backend is no longer used: log the remaining counts."""
        for kind, times in self._kinds.rest().items():
            self._log_problem(kind, times)
        for (method, code), times in self._refusals.rest().items():
            self._log_refusal(method, code, times)

    def _bounded(self, kind: Kind, name: str) -> str:
        shown = printable(name, LONGEST_NAME) or "none"
        names = self._names[kind]
        if shown not in names and len(names) >= MOST_NAMES:
            return OTHER
        names.add(shown)
        return shown

    def _log_problem(self, kind: Kind, times: int, name: str | None = None) -> None:
        named = {} if name is None else {"name": name}
        _log.warning(
            "problem with a message of the backend",
            backend=self._backend,
            kind=kind,
            times=times,
            **named,
        )

    def _log_refusal(self, method: str, code: str, times: int) -> None:
        _log.warning(
            "the backend answered a request with an error",
            backend=self._backend,
            method=method,
            code=code,
            times=times,
        )
