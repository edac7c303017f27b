"""Rate limits and concurrency limits per key; excess requests wait in a fair, bounded queue."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final, Self

import trio
from attrs import Factory, define, frozen

from pipeline.errors import Failure, ProxyError
from pipeline.options import DAY
from pipeline.options import server_flag as flag

MINUTE: Final = 60.0
SOON: Final = 1.0


@frozen(slots=False)
class LimitOptions:
    """Limits on running turns, waiting requests, and requests a minute."""

    requests_per_minute: int = flag(
        "PROXY_REQUESTS_PER_MINUTE",
        0,
        "the most requests a minute for each key; 0: no limit",
        bounds=(0, 1_000_000),
    )
    concurrency: int = flag(
        "PROXY_CONCURRENCY",
        256,
        "the most turns that run at once; more requests wait in a fair queue",
        bounds=(1, 100_000),
    )
    concurrency_per_key: int = flag(
        "PROXY_CONCURRENCY_PER_KEY",
        64,
        "the most turns that run at once for one key",
        bounds=(1, 100_000),
    )
    queue_size: int = flag(
        "PROXY_QUEUE_SIZE",
        256,
        "the most requests that wait in the queue; 0: none",
        bounds=(0, 100_000),
    )
    queue_timeout: float = flag(
        "PROXY_QUEUE_TIMEOUT_S",
        30.0,
        "how long a request waits in the queue",
        bounds=(0, DAY),
    )


@frozen
class Limits:
    """The limits of one server; `per_minute` 0 means no rate limit."""

    concurrency: int = 256
    per_key: int = 64
    queue: int = 256
    patience: float = 30.0
    per_minute: int = 0
    keys: int = 1


@define(eq=False)
class _Waiting:
    key: str
    weight: int
    admitted: trio.Event = Factory(trio.Event)


@define(eq=False)
class Slot:
    """The slots of a request's turns, released once: at the end of the block, or before it."""

    _release: Callable[[], None] | None

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admission:
    """Admits requests. Keys take turns, so one key's backlog does not delay another key."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._allowance: dict[str, tuple[float, float]] = {}

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def check(self, key: str) -> None:
        """Count a request that will enter later; ProxyError if the queue is full."""
        self._spend(key)
        if key in self._queues or not self._fits(key, 1):
            self._check_queue(key)

    async def enter(self, key: str, turns: int = 1, *, counted: bool = False) -> Slot:
        """Slots for a number of turns, after waiting in the queue; closing them releases them.

        ProxyError if the queue is full or the wait is too long.
        """
        limits = self._limits
        # A request for more turns than the limit must still run at some time.
        weight = max(1, min(turns, limits.concurrency, limits.per_key))
        if not counted:
            self._spend(key)
        if key not in self._queues and self._fits(key, weight):
            self._running[key] += weight
            return self._slot(key, weight)
        self._check_queue(key)
        return await self._wait(_Waiting(key, weight))

    def _check_queue(self, key: str) -> None:
        limits = self._limits
        share = ceil(limits.queue / max(1, limits.keys))
        if len(self._queues.get(key, ())) >= share:
            raise _too_many(
                f"{limits.per_key} requests of this key are running and {share} waiting"
            )
        if self.waiting >= limits.queue:
            raise _overloaded(f"{self.waiting} requests are already waiting")

    async def _wait(self, me: _Waiting) -> Slot:
        self._queues.setdefault(me.key, deque()).append(me)
        try:
            with trio.move_on_after(self._limits.patience):
                await me.admitted.wait()
        except trio.Cancelled:
            self._forget(me)
            raise
        if not me.admitted.is_set():
            self._forget(me)
            raise _overloaded(f"no slot became free within {self._limits.patience:g} s")
        return self._slot(me.key, me.weight)

    def _forget(self, me: _Waiting) -> None:
        """Remove a request that stopped waiting, perhaps just after it was admitted."""
        if me.admitted.is_set():
            self._leave(me.key, me.weight)
            return
        queue = self._queues[me.key]
        queue.remove(me)
        if not queue:
            del self._queues[me.key]
        self._admit_next()  # the next request may be small enough

    def _slot(self, key: str, weight: int) -> Slot:
        return Slot(partial(self._leave, key, weight))

    def _leave(self, key: str, weight: int) -> None:
        self._running[key] -= weight
        if not self._running[key]:
            del self._running[key]
        self._admit_next()

    def _admit_next(self) -> None:
        """Admit the first request of each key in turn, as long as there is room."""
        for key in list(self._queues):
            queue = self._queues[key]
            if not self._fits(key, queue[0].weight):
                continue
            first = queue.popleft()
            self._running[key] += first.weight
            first.admitted.set()
            del self._queues[key]
            if queue:
                self._queues[key] = queue  # behind the other keys
        if any(self._fits(key, queue[0].weight) for key, queue in self._queues.items()):
            self._admit_next()

    def _fits(self, key: str, weight: int) -> bool:
        return self.running + weight <= max(1, self._limits.concurrency) and self._running[
            key
        ] + weight <= max(1, self._limits.per_key)

    def _spend(self, key: str) -> None:
        """Take one request from a key's allowance, a token bucket."""
        rate = self._limits.per_minute
        if not rate:
            return
        now = trio.current_time()
        left, at = self._allowance.get(key, (float(rate), now))
        left = min(float(rate), left + (now - at) * rate / MINUTE)
        if left < 1:
            self._allowance[key] = (left, now)
            pause = (1 - left) * MINUTE / rate
            raise _too_many(f"this key has used its {rate} requests a minute", pause)
        self._allowance[key] = (left - 1, now)


def _too_many(reason: str, pause: float = SOON) -> ProxyError:
    return ProxyError(
        Failure(
            f"too many requests: {reason}; try again in {ceil(pause)}s",
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=pause,
        )
    )


def _overloaded(reason: str) -> ProxyError:
    return ProxyError(
        Failure(
            f"the server is busy: {reason}; try again in a moment",
            status=503,
            type="server_error",
            code="server_is_overloaded",
            retry_after=SOON,
        )
    )
