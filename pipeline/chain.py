"""The recipe of a pipeline and its running: the only place where channels are opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeAlias, TypeVar

import trio
from attrs import evolve, field, frozen

from pipeline.errors import only_member
from pipeline.events import Burst, Event
from pipeline.lane import UNREAD, Lane
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.links import CountedReceive, Delivered, Onward
from pipeline.stage import AsyncStage, Outcome, Sink, Source, Stage, settle
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

        `fuse` lets stages that never await share the task of what writes to them: the same events,
        fewer hops.
        """
        ledger = Ledger() if ledger is None else ledger
        stages = self.open(turn or Turn(), ledger)
        outcome: Outcome | None = None
        try:
            async with trio.open_nursery() as nursery:
                tasks = _Tasks(nursery, real_time=source.real_time)
                work: Work = source.run
                sharing: list[Stage] = []
                for stage in stages:
                    if isinstance(stage, AsyncStage):
                        receive = tasks.start(work, sharing)
                        work, sharing = partial(_await, stage, receive), []
                    elif fuse:
                        sharing.append(stage)
                    else:
                        receive = tasks.start(work, sharing)
                        work, sharing = partial(_copy, receive), [stage]
                receive = tasks.start(work, sharing)
                reading = Delivered(receive, ledger.count_delivered)
                with closing(receive):
                    result = await sink.run(reading)
                outcome = reading.outcome()
                tasks.leave()
        except BaseExceptionGroup as group:
            raise only_member(group) from None
        else:
            return result
        finally:
            settle(source, outcome)


Work: TypeAlias = Callable[[Onward], Awaitable[None]]
"""What a task does: read bursts from wherever it does, and write bursts."""


async def _copy(receive: trio.MemoryReceiveChannel[Burst], onward: Onward) -> None:
    """Pass on every burst, for the stage that has this task for itself."""
    onward.upstream = receive
    while not onward.over:
        await onward.room()  # before reading on: what has been read must be taken
        try:
            burst = receive.receive_nowait()  # so that nothing is ever between two tasks
        except trio.WouldBlock:
            try:
                burst = await receive.receive()
            except trio.EndOfChannel:
                return
        except trio.EndOfChannel:
            return
        if onward.nobody_reads:
            onward.refuse(burst)
            return
        onward.take(burst)


async def _await(
    stage: AsyncStage, receive: trio.MemoryReceiveChannel[Burst], onward: Onward
) -> None:
    books = stage.ledger
    onward.books = books
    reason = UNREAD  # if it is made to leave, that is what becomes of what it has read
    try:
        await stage.run(CountedReceive(receive, books.count_taken), onward)
        reason = UNEXPLAINED
    finally:
        books.settle(reason)


class _Tasks:
    """The tasks of a run, started one after the other: each reads what the one before writes."""

    def __init__(self, nursery: trio.Nursery, *, real_time: bool) -> None:
        self._nursery = nursery
        self._real_time = real_time
        self.leave: Callable[[], None] = lambda: None
        """Ends the newest task, and with it all that is upstream of it."""

    def start(self, work: Work, sharing: Sequence[Stage]) -> trio.MemoryReceiveChannel[Burst]:
        """Run a task, and the stages that share it, until all is written or nobody reads.

        Its end takes everything upstream along: a closed channel breaks a sender at once, but a
        task that waits for its backend is not sending.
        """
        send, receive = trio.open_memory_channel[Burst](0)
        onward = Onward(Lane(sharing), send, self._nursery, real_time=self._real_time)
        scope, upstream = trio.CancelScope(), self.leave
        onward.leave = scope.cancel

        async def task() -> None:
            try:
                with scope:
                    await work(onward)
                    onward.finish()
            except trio.BrokenResourceError:
                if not onward.nobody_reads:
                    raise
            finally:
                onward.settle()
                upstream()
            # Not after a mistake: that cancels those who read, and is then the only error.
            onward.close()

        def leave() -> None:
            receive.close()
            scope.cancel()

        self.leave = leave
        self._nursery.start_soon(task)
        return receive
