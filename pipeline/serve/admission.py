"""How much at once: rates and places per key, and a fair bounded queue for the rest."""

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
    """How many turns run at once, how many wait, and how many a key may start."""

    requests_per_minute: int = flag(
        "PROXY_REQUESTS_PER_MINUTE",
        0,
        "how many turns a key may start a minute; 0: any number",
        bounds=(0, 1_000_000),
    )
    concurrency: int = flag(
        "PROXY_CONCURRENCY",
        256,
        "how many turns run at once; more wait in a fair queue",
        bounds=(1, 100_000),
    )
    concurrency_per_key: int = flag(
        "PROXY_CONCURRENCY_PER_KEY",
        64,
        "how many of them one key may have",
        bounds=(1, 100_000),
    )
    queue_size: int = flag(
        "PROXY_QUEUE_SIZE",
        256,
        "how many requests may wait for their turn; 0 means none",
        bounds=(0, 100_000),
    )
    queue_timeout: float = flag(
        "PROXY_QUEUE_TIMEOUT_S",
        30.0,
        "how long a request waits for its turn",
        bounds=(0, DAY),
    )


@frozen
class Limits:
    """What one server takes on; 0 requests a minute means any number of them."""

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
    called: trio.Event = Factory(trio.Event)


@define(eq=False)
class Place:
    """Room for a request's turns, given back once: where its block ends, unless it was passed on.

    An ExitStack would do the same, and take two kilobytes of every open stream.
    """

    _give_back: Callable[[], None] | None

    def pass_on(self) -> Place:
        """The same place, for somebody else to give back."""
        place, self._give_back = Place(self._give_back), None
        return place

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admission:
    """Lets requests in. Keys take turns: a busy one never makes another wait for its backlog."""

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
        """Count a request that will enter later; ProxyError where it could not even wait."""
        self._spend(key)
        if key in self._queues or not self._fits(key, 1):
            self._check_queue(key)

    async def enter(self, key: str, turns: int = 1, *, counted: bool = False) -> Place:
        """A place for so many turns, waited for in line; closing it gives it back.

        ProxyError where there is none.
        """
        limits = self._limits
        # More than there is at all must still fit one day.
        weight = max(1, min(turns, limits.concurrency, limits.per_key))
        if not counted:
            self._spend(key)
        if key not in self._queues and self._fits(key, weight):
            self._running[key] += weight
            return self._seat(key, weight)
        self._check_queue(key)
        return await self._wait(_Waiting(key, weight))

    def _check_queue(self, key: str) -> None:
        limits = self._limits
        share = ceil(limits.queue / max(1, limits.keys))
        if len(self._queues.get(key, ())) >= share:
            raise _too_many(f"{limits.per_key} requests of this key run and {share} wait already")
        if self.waiting >= limits.queue:
            raise _overloaded(f"{self.waiting} requests wait already")

    async def _wait(self, me: _Waiting) -> Place:
        self._queues.setdefault(me.key, deque()).append(me)
        try:
            with trio.move_on_after(self._limits.patience):
                await me.called.wait()
        except trio.Cancelled:
            self._forget(me)
            raise
        if not me.called.is_set():
            self._forget(me)
            raise _overloaded(f"no place became free within {self._limits.patience:g} s")
        return self._seat(me.key, me.weight)

    def _forget(self, me: _Waiting) -> None:
        """Somebody in the queue went away, perhaps just when the place became free."""
        if me.called.is_set():
            self._leave(me.key, me.weight)
            return
        queue = self._queues[me.key]
        queue.remove(me)
        if not queue:
            del self._queues[me.key]
        self._call_next()  # who stood behind may be small enough

    def _seat(self, key: str, weight: int) -> Place:
        return Place(partial(self._leave, key, weight))

    def _leave(self, key: str, weight: int) -> None:
        self._running[key] -= weight
        if not self._running[key]:
            del self._running[key]
        self._call_next()

    def _call_next(self) -> None:
        """Call the first of every key in turn, as long as there is room."""
        for key in list(self._queues):
            queue = self._queues[key]
            if not self._fits(key, queue[0].weight):
                continue
            first = queue.popleft()
            self._running[key] += first.weight
            first.called.set()
            del self._queues[key]
            if queue:
                self._queues[key] = queue  # to the end of the round
        if any(self._fits(key, queue[0].weight) for key, queue in self._queues.items()):
            self._call_next()

    def _fits(self, key: str, weight: int) -> bool:
        return self.running + weight <= max(1, self._limits.concurrency) and self._running[
            key
        ] + weight <= max(1, self._limits.per_key)

    def _spend(self, key: str) -> None:
        """Take one request from a key's allowance, which fills evenly over the minute."""
        rate = self._limits.per_minute
        if not rate:
            return
        now = trio.current_time()
        left, at = self._allowance.get(key, (float(rate), now))
        left = min(float(rate), left + (now - at) * rate / MINUTE)
        if left < 1:
            self._allowance[key] = (left, now)
            pause = (1 - left) * MINUTE / rate
            raise _too_many(f"this key has spent its {rate} requests a minute", pause)
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
