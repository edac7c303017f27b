"""A turn that runs: a source, stages on top of it, and the loop that writes the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from functools import partial
from math import inf
from typing import cast

import trio
from attrs import evolve

from pipeline.errors import Failure, only_member
from pipeline.events import Burst, ResponseEnd, Tick, ToolCall, TurnEnd
from pipeline.ledger import Ledger
from pipeline.segment import UNREAD, Clock
from pipeline.stage import AsyncStage, Flow, Incoming, Outcome, Receive, Sink, Source, Stage, Write
from pipeline.tasks import Links, Task
from pipeline.turn import Turn


@asynccontextmanager
async def open_chain(
    source: Source,
    turn: Turn,
    stages: Sequence[Stage | AsyncStage],
    ledger: Ledger,
    *,
    fuse: bool,
) -> AsyncGenerator[Chain]:
    """Open a source with stages on top of it. See Pipeline.open."""
    clock = Clock() if source.real_time else None
    async with source.open(turn) as incoming:
        links = Links(incoming, clock, fuse=fuse)
        links.add(stages)
        try:
            if not links.tasks:
                yield Chain(links.top, incoming, ledger)
                return
            async with trio.open_nursery() as nursery:
                links.start(nursery)
                yield Chain(links.top, incoming, ledger)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None
        finally:
            for segment in links.segments:
                segment.abandon()


class Chain:
    """What the writer of an answer receives from. What it gave out counts as delivered."""

    def __init__(self, top: Receive, incoming: Incoming, ledger: Ledger) -> None:
        self._top = top
        self._incoming = incoming
        self._ledger = ledger
        self._calls: list[str] = []
        self._cut_at = inf
        self._truncated = self._response_ended = self._finishing = False
        self.heard = 0.0
        """When the first event came from the backend."""

    async def receive(self) -> Burst:
        while True:
            burst = self._count(await self._top.receive())
            if burst:
                return burst

    def receive_nowait(self) -> Burst:
        while True:
            burst = self._count(self._top.receive_nowait())
            if burst:
                return burst

    def __aiter__(self) -> AsyncIterator[Burst]:
        return self

    async def __anext__(self) -> Burst:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def finishing(self) -> None:
        """The answer is complete, and is written now: the turn may end upstream."""
        if not self._finishing:
            self._finishing = True
            self._incoming.finishing(self._outcome())

    def delivered(self) -> None:
        """The client has been sent the whole answer. No checkpoint may lie before this call."""
        self._incoming.delivered(self._outcome())

    def fail(self, failure: Failure) -> None:
        """End the turn with a failure."""
        self._incoming.fail(failure)

    def unread(self, burst: Burst) -> None:
        """What was received from here was not delivered."""
        self._ledger.delivered -= len(burst)
        for last in self._ledger.stages[-1:]:
            last.given -= len(burst)
            last.drop(UNREAD, len(burst))

    def _outcome(self) -> Outcome | None:
        return None if self._truncated else Outcome(tuple(self._calls), self._cut_at)

    def _count(self, flow: Flow) -> Burst:
        """Enter a burst as delivered, and note which calls and which end it has."""
        ticks = False
        for event in flow:
            kind = type(event)
            if kind is ToolCall:
                self._calls.append(cast("ToolCall", event).call_id)
                self._response_ended = False
            elif kind is ResponseEnd:
                self._response_ended = True
            elif kind is TurnEnd:
                self._truncated = cast("TurnEnd", event).calls_truncated
                self._cut_at = inf if self._response_ended else event.at
            elif kind is Tick:
                ticks = True
        if ticks:
            flow = [event for event in flow if type(event) is not Tick]
        if not self.heard and flow:
            self.heard = flow[0].at
        self._ledger.delivered += len(flow)
        return cast("Burst", tuple(flow))


async def respond(
    chain: Chain, sink: Sink[object], write: Write, *, silence: float = inf, first: bytes = b""
) -> None:
    """Write an answer: receive, encode, write, until it is finished. The only loop there is.

    `first` is what was encoded before. A keepalive is written into every silence so long. One
    cancel scope serves many bursts, since one for each would cost as much as the rest of the loop;
    so it may end for a silence that was broken since. The last write is outside of it, because
    some writers wait there.
    """
    data, finished = first, sink.finished
    if data and not finished:
        await write(data)
    last = trio.current_time()
    while not finished:
        with trio.CancelScope(deadline=last + silence):
            while True:
                try:
                    data = sink.feed(await chain.receive())
                except trio.EndOfChannel:
                    return  # without an end, as the sink's result says
                finished = sink.finished
                if finished:
                    break
                if data:
                    await write(data)
                    last = trio.current_time()
        if not finished and trio.current_time() >= last + silence:
            await write(sink.keepalive())
            last = trio.current_time()
    chain.finishing()
    if data:
        await write(data)


# -- several choices -------------------------------------------------------------------------------


@asynccontextmanager
async def merged(
    opening: Sequence[AbstractAsyncContextManager[Chain]],
) -> AsyncGenerator[Chain]:
    """Several chains as one, for one writer; each event has the number of its chain as `choice`."""
    async with AsyncExitStack() as stack:
        chains = [await stack.enter_async_context(one) for one in opening]
        task = Task(partial(_merge, chains), None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.run)
                yield Chain(task, _All(chains), Ledger())
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


async def _merge(chains: Sequence[Chain], send: trio.MemorySendChannel[Burst]) -> None:
    try:
        async with trio.open_nursery() as nursery:
            for number, chain in enumerate(chains):
                nursery.start_soon(_number, chain, number, send)
    except BaseExceptionGroup as group:
        raise only_member(group) from None


async def _number(chain: Chain, number: int, send: trio.MemorySendChannel[Burst]) -> None:
    async for burst in chain:
        try:
            await send.send(tuple(evolve(event, choice=number) for event in burst))
        except BaseException:
            chain.unread(burst)
            raise
        if isinstance(burst[-1], TurnEnd):
            chain.finishing()  # it must not run on upstream until the last choice has ended
            return


class _All(Incoming):
    """What is said of an answer, said to all of its chains."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._chains = chains

    def finishing(self, outcome: Outcome | None) -> None:
        for chain in self._chains:
            chain.finishing()

    def delivered(self, outcome: Outcome | None) -> None:
        for chain in self._chains:
            chain.delivered()

    def fail(self, failure: Failure) -> None:
        for chain in self._chains:
            chain.fail(failure)


async def nowhere(_: bytes) -> None:
    """Write nothing: the answer is what the sink makes of it."""
