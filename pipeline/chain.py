"""The recipe of a pipeline and its running: the only place where channels are opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import TypeAlias, TypeVar

import trio
from attrs import evolve, field, frozen

from pipeline.errors import only_member
from pipeline.events import Burst, Event
from pipeline.lane import Lane
from pipeline.ledger import Ledger
from pipeline.stage import AsyncStage, Settling, Sink, Source, Stage
from pipeline.turn import Turn

StageFactory: TypeAlias = Callable[[], Stage | AsyncStage]
Result = TypeVar("Result")
GUARD = "guard"


def _checked(steps: Iterable[tuple[str, StageFactory]]) -> tuple[tuple[str, StageFactory], ...]:
    steps = tuple(steps)
    names = [name for name, _ in steps]
    for name, factory in steps:
        if names.count(name) > 1:
            raise ValueError(f"two stages are named {name!r}; every name must be unique")
        if not callable(factory):
            raise TypeError(
                f"stage {name!r}: give the class, or a function that makes the stage, and not "
                f"{factory!r}: a stage serves one turn, so every run makes its own"
            )
    return steps


@frozen
class Pipeline:
    """An ordered, named, editable recipe of stages. Editing gives a new recipe.

    `guard` is the stage that is always on and always last: no edit can remove it or come after it.
    """

    steps: tuple[tuple[str, StageFactory], ...] = field(default=(), converter=_checked)
    guard: StageFactory | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self)

    def __iter__(self) -> Iterator[tuple[str, StageFactory]]:
        yield from self.steps
        if self.guard is not None:
            yield GUARD, self.guard

    def replace(self, name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with another stage under a name."""
        at = self._find(name)
        return evolve(self, steps=(*self.steps[:at], (name, factory), *self.steps[at + 1 :]))

    def insert_before(self, name: str, new_name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with one more stage, before a named one."""
        at = len(self.steps) if self.guard and name == GUARD else self._find(name)
        return self._insert(at, new_name, factory)

    def insert_after(self, name: str, new_name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with one more stage, after a named one."""
        return self._insert(self._find(name) + 1, new_name, factory)

    def without(self, name: str) -> Pipeline:
        """The same recipe less one stage."""
        at = self._find(name)
        return evolve(self, steps=self.steps[:at] + self.steps[at + 1 :])

    def _insert(self, at: int, name: str, factory: StageFactory) -> Pipeline:
        return evolve(self, steps=(*self.steps[:at], (name, factory), *self.steps[at:]))

    def _find(self, name: str) -> int:
        if self.guard is not None and name == GUARD:
            raise LookupError(
                f"{GUARD!r} is always on and always last; insert_before({GUARD!r}, …)"
            )
        if name in self.names:
            return self.names.index(name)
        known = ", ".join(self.names) or "none at all"
        raise LookupError(f"no stage is named {name!r}; the stages are: {known}")

    # -- running ---------------------------------------------------------------------------------

    def open(self, turn: Turn, ledger: Ledger | None = None) -> list[Stage | AsyncStage]:
        """Make the stages of one run, ready to be fed, their books opened in the ledger."""
        stages: list[Stage | AsyncStage] = []
        for name, factory in self:
            stage = factory()
            stage.ledger.name = name
            stage.begin(turn)
            stages.append(stage)
            if ledger is not None:
                ledger.stages.append(stage.ledger)
        return stages

    def process(
        self, events: Iterable[Event], turn: Turn | None = None, *, ledger: Ledger | None = None
    ) -> list[Event]:
        """Put events through the recipe at once, without trio: for tests and quick looks."""
        stages = self.open(turn or Turn(), ledger)
        waiting = [stage.ledger.name for stage in stages if isinstance(stage, AsyncStage)]
        if waiting:
            raise TypeError(f"process() cannot await, and {waiting[0]!r} does; use run()")
        lane = Lane(stage for stage in stages if isinstance(stage, Stage))
        out: list[Event] = []
        for event in events:
            if lane.done:
                break
            out += lane.take((event,))
        out += lane.close()
        if ledger is not None:
            ledger.delivered += len(out)
        return out

    async def run(
        self,
        source: Source,
        sink: Sink[Result],
        turn: Turn | None = None,
        *,
        ledger: Ledger | None = None,
        fuse: bool = False,
    ) -> Result:
        """Run source, stages and sink as tasks of one nursery; return what the sink returns.

        `fuse` lets adjacent stages that never await share a task: the same events, fewer hops.
        """
        ledger = Ledger() if ledger is None else ledger
        stages = self.open(turn or Turn(), ledger)
        delivered = False
        try:
            async with trio.open_nursery() as nursery:
                send, receive = trio.open_memory_channel[Burst](0)
                upstream = _start(nursery, None, _run_source, source, send)
                for link in _links(stages, fuse=fuse):
                    send, following = trio.open_memory_channel[Burst](0)
                    if isinstance(link, Lane):
                        upstream = _start(
                            nursery, upstream, _run_lane, link, receive, send, source.real_time
                        )
                    else:
                        upstream = _start(nursery, upstream, _run_async_stage, link, receive, send)
                    receive = following
                with receive:
                    result = await sink.run(_CountedReceive(receive, ledger.count_delivered))
                delivered = True
                upstream.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None
        else:
            return result
        finally:
            if isinstance(source, Settling):
                source.settle(delivered=delivered)


def _start(
    nursery: trio.Nursery,
    upstream: trio.CancelScope | None,
    run: Callable[..., Awaitable[None]],
    *arguments: object,
) -> trio.CancelScope:
    """Run a task that takes everything upstream of it along when it ends.

    A closed channel breaks a sender at once, but a task that waits for its backend is not sending.
    """
    scope = trio.CancelScope()

    def take_along() -> None:
        if upstream is not None:
            upstream.cancel()

    async def task() -> None:
        with scope:
            await run(*arguments, take_along)
        take_along()

    nursery.start_soon(task)
    return scope


def _links(stages: Sequence[Stage | AsyncStage], *, fuse: bool) -> Iterator[Lane | AsyncStage]:
    for pure, adjacent in groupby(stages, lambda stage: isinstance(stage, Stage)):
        if pure and fuse:
            yield Lane(stage for stage in adjacent if isinstance(stage, Stage))
        else:
            for stage in adjacent:
                yield Lane((stage,)) if isinstance(stage, Stage) else stage


def _nobody_reads(send: trio.MemorySendChannel[Burst]) -> bool:
    """Tell a downstream that left from a broken resource of the sender's own, such as a backend."""
    return send.statistics().open_receive_channels == 0


async def _run_source(
    source: Source, send: trio.MemorySendChannel[Burst], _: Callable[[], None]
) -> None:
    with send:
        try:
            await source.run(send)
        except trio.BrokenResourceError:
            if not _nobody_reads(send):
                raise


async def _run_lane(
    lane: Lane,
    receive: trio.MemoryReceiveChannel[Burst],
    send: trio.MemorySendChannel[Burst],
    real_time: bool,
    leave_upstream: Callable[[], None],
) -> None:
    out: Sequence[Event] = ()
    with receive, send:
        try:
            while True:
                # A cancel scope doubles the cost of a hop, so it is opened only for a deadline.
                if real_time and lane.deadline < inf:
                    out = await _take_or_wake(lane, receive)
                else:
                    out = lane.take(await receive.receive())
                if lane.done:  # before sending: a slow client must not delay the cut
                    receive.close()
                    leave_upstream()
                if out:
                    await send.send(tuple(out))
                    out = ()
                if lane.done:
                    break
        except trio.EndOfChannel:
            pass
        except (trio.BrokenResourceError, trio.Cancelled) as left:
            if isinstance(left, trio.BrokenResourceError) and not _nobody_reads(send):
                raise
            lane.abandon(out)
            if isinstance(left, trio.Cancelled):
                raise
            return
        out = lane.close()
        try:
            if out:
                await send.send(tuple(out))
        except trio.BrokenResourceError:
            lane.unread(out)


async def _take_or_wake(lane: Lane, receive: trio.MemoryReceiveChannel[Burst]) -> Sequence[Event]:
    burst: Burst = ()
    with trio.move_on_at(lane.deadline) as waiting:
        burst = await receive.receive()
    return lane.wake() if waiting.cancelled_caught else lane.take(burst)


async def _run_async_stage(
    stage: AsyncStage,
    receive: trio.MemoryReceiveChannel[Burst],
    send: trio.MemorySendChannel[Burst],
    _: Callable[[], None],
) -> None:
    with receive, send:
        try:
            books = stage.ledger
            await stage.run(
                _CountedReceive(receive, books.count_taken), _CountedSend(send, books.count_given)
            )
        except trio.BrokenResourceError:
            if not _nobody_reads(send):
                raise
        finally:
            stage.ledger.settle()


class _CountedReceive:
    """The reading end of a channel, with every event read entered into the books."""

    def __init__(
        self, channel: trio.MemoryReceiveChannel[Burst], count: Callable[[int], None]
    ) -> None:
        self._channel = channel
        self._count = count

    async def receive(self) -> Burst:
        burst = await self._channel.receive()
        self._count(len(burst))
        return burst

    def __aiter__(self) -> AsyncIterator[Burst]:
        return self

    async def __anext__(self) -> Burst:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def close(self) -> None:
        self._channel.close()


class _CountedSend:
    """The writing end of a channel, with every event sent entered into the books."""

    def __init__(
        self, channel: trio.MemorySendChannel[Burst], count: Callable[[int], None]
    ) -> None:
        self._channel = channel
        self._count = count

    async def send(self, value: Burst, /) -> None:
        await self._channel.send(value)
        self._count(len(value))

    def close(self) -> None:
        self._channel.close()
