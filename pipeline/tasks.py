"""The tasks of a chain, and the channels that link them: no other file opens channels."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, TypeAlias, cast

import trio

from pipeline.errors import Failure, only_member
from pipeline.events import Burst, Failed, Tick, TurnEnd
from pipeline.ledger import UNEXPLAINED
from pipeline.segment import UNREAD, Clock, Segment, Stages
from pipeline.stage import AsyncStage, Flow, Incoming, Receive, Send, Stage
from pipeline.turn import Turn

Work: TypeAlias = Callable[["trio.MemorySendChannel[Any]"], Awaitable[None]]


class Links:
    """The segments and tasks of a chain, each on top of the one before."""

    def __init__(self, incoming: Incoming, clock: Clock | None, *, fuse: bool) -> None:
        self.top: Receive = incoming
        self.segments: list[Segment] = []
        self.tasks: list[Task] = []
        self._clock = clock
        self._fuse = fuse

    def add(self, stages: Sequence[Stage | AsyncStage]) -> None:
        """Put stages on top."""
        together: list[Stage] = []
        for stage in stages:
            if isinstance(stage, AsyncStage):
                self._add_segment(together)
                together = []
                self._add_task(partial(_await, stage, self.top))
            elif self._fuse:
                together.append(stage)
            else:
                self._add_segment([stage])
                self._add_task(partial(_pump, self.segments[-1]))
        self._add_segment(together)

    def start(self, nursery: trio.Nursery) -> None:
        for task in self.tasks:
            nursery.start_soon(task.run)

    def _add_segment(self, stages: Sequence[Stage]) -> None:
        on_source = not self.segments
        if stages or on_source:
            self.top = Segment(self.top, Stages(stages), clock=self._clock, on_source=on_source)
            self.segments.append(self.top)

    def _add_task(self, work: Work) -> None:
        self.top = Task(work, self.tasks[-1] if self.tasks else None)
        self.tasks.append(self.top)


class Task(Incoming):
    """A task that fills a zero-buffer channel; itself the end to receive from.

    Its end takes everything upstream along, as nothing receives from there any more. What it
    raised is raised by receive(): a mistake must not pass for the end of a turn. What it raises
    while it is made to leave is raised at once.
    """

    def __init__(self, work: Work, upstream: Task | None) -> None:
        self._work = work
        self._upstream = upstream
        self._scope = trio.CancelScope()
        self._error: Exception | None = None
        self._send, self._receive = trio.open_memory_channel[Any](0)

    async def run(self) -> None:
        try:
            with self._scope:
                await self._work(self._send)
        except Exception as error:
            if self._scope.cancel_called or trio.current_effective_deadline() == -inf:
                raise
            self._error = error  # raised again by receive()
        finally:
            self._send.close()
            if self._upstream is not None:
                self._upstream.leave()

    def leave(self) -> None:
        """Nothing is received from here any more."""
        self._scope.cancel()

    async def receive(self) -> Any:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise self._error or trio.EndOfChannel from None

    def receive_nowait(self) -> Any:
        try:
            return self._receive.receive_nowait()
        except trio.EndOfChannel:
            raise self._error or trio.EndOfChannel from None


class _Sending(Task):
    """The task of a source. A failure from outside ends it, and is the end of its turn."""

    _failure: Failure | None = None

    def fail(self, failure: Failure) -> None:
        self._failure = failure
        self.leave()

    async def receive(self) -> Burst:
        try:
            return cast("Burst", await super().receive())
        except trio.EndOfChannel:
            return self._end()

    def receive_nowait(self) -> Burst:
        try:
            return cast("Burst", super().receive_nowait())
        except trio.EndOfChannel:
            return self._end()

    def _end(self) -> Burst:
        failure, self._failure = self._failure, None
        if failure is None:
            raise trio.EndOfChannel
        now = trio.current_time()
        return Failed(failure, at=now), TurnEnd("failed", at=now)


async def _pump(segment: Segment, send: trio.MemorySendChannel[Flow]) -> None:
    """Link two segments by a task and a channel."""
    while True:
        try:
            flow = await segment.receive()
        except trio.EndOfChannel:
            return
        try:
            await send.send(flow)
        except BaseException:
            segment.unread(flow)
            raise


async def _await(stage: AsyncStage, upstream: Receive, send: trio.MemorySendChannel[Flow]) -> None:
    reason = UNREAD  # if it is cancelled, that is what becomes of what it has read
    try:
        await stage.run(_Reading(stage, upstream, send), _Writing(stage, send))
        reason = UNEXPLAINED
    finally:
        stage.ledger.settle(reason)


class _Reading:
    """What an AsyncStage reads from. Ticks pass it by, in order."""

    def __init__(
        self, stage: AsyncStage, upstream: Receive, send: trio.MemorySendChannel[Flow]
    ) -> None:
        self._books = stage.ledger
        self._upstream = upstream
        self._send = send
        self._tick: Tick | None = None
        """Goes on once the stage comes for more than the events before it."""

    async def receive(self) -> Burst:
        while True:
            if self._tick is not None:
                await self._send.send((self._tick,))
                self._tick = None
            flow = await self._upstream.receive()
            self._tick = next((event for event in flow if isinstance(event, Tick)), None)
            burst = tuple(event for event in flow if not isinstance(event, Tick))
            if burst:
                self._books.taken += len(burst)
                return burst

    def __aiter__(self) -> AsyncIterator[Burst]:
        return self

    async def __anext__(self) -> Burst:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


class _Writing:
    """What an AsyncStage sends to. What it gave counts when it was received."""

    def __init__(self, stage: AsyncStage, send: trio.MemorySendChannel[Flow]) -> None:
        self._books = stage.ledger
        self._send = send

    async def send(self, value: Burst, /) -> None:
        await self._send.send(value)
        self._books.given += len(value)


class SendingSource:
    """A source that is written as a loop that sends: subclass it and define `run`.

    The loop has a task of its own, which is cancelled when nothing is received any more.
    """

    real_time = True

    async def run(self, send: Send) -> None:
        """Send bursts until the turn ends."""
        raise NotImplementedError(f"{type(self).__name__} must define run(send)")

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        task = _Sending(self.run, None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.run)
                yield task
                task.leave()
        except BaseExceptionGroup as group:
            raise only_member(group) from None
