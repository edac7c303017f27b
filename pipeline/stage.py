"""What the parts of a chain are: stages, the sources below them and the sinks above."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import trio
from attrs import frozen

from pipeline.errors import Failure
from pipeline.events import Burst, Event, TextDelta, Tick
from pipeline.ledger import StageLedger
from pipeline.turn import Turn

NOTHING: tuple[Event, ...] = ()
Flow: TypeAlias = Sequence[Event | Tick]
"""A burst on its way through a chain: its events, and ticks of the clock among them."""


class Stage:
    """Feed it the events of one turn, in order; what it returns goes on down the pipeline.

    A stage does no I/O, reads no clock and logs nothing. It learns the time from `event.at` and
    asks to be woken by setting `deadline`. Only `feed` must be written.
    """

    deadline: float = inf
    """When `wake` is due, in the source's time; inf means never."""
    done: bool = False
    """Nothing fed from now on can matter: everything upstream is ended."""
    wants: ClassVar[frozenset[type] | None] = None
    """The kinds of events that `feed` looks at; all others pass it by. None means all kinds."""

    def __init__(self) -> None:
        self.ledger = StageLedger()

    def begin(self, turn: Turn) -> None:
        """Called once, before anything is fed, with what the client asked for."""

    def feed(self, event: Event) -> Sequence[Event]:
        """Take one event; return those that go on."""
        raise NotImplementedError(f"{type(self).__name__} must define feed(event)")

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        """Take a run of text at once, which most bursts are: what feeding each delta would return.

        Return `text` itself to let it pass. Return None to have each delta fed, and then change
        nothing. It is called only while no deadline is set, and must set none. A stage that lets
        `text` itself pass is not done with it.
        """
        return None

    def wake(self, now: float) -> Sequence[Event]:
        """The deadline has passed; there is none any more, unless a new one is set."""
        return NOTHING

    def close(self) -> Sequence[Event]:
        """The input has ended: give back what was held."""
        return NOTHING

    # -- the books -------------------------------------------------------------------------------

    def drop(self, event: Event, reason: str) -> Sequence[Event]:
        """Let an event end here, and say why."""
        self.ledger.drop(reason)
        return NOTHING

    def fold(self, event: Event, reason: str) -> Sequence[Event]:
        """Take an event into something that comes out later, or already did."""
        self.ledger.fold(reason)
        return NOTHING

    def note(self, text: str) -> None:
        """Leave a remark in the books, for the log."""
        self.ledger.note(text)

    def mark(self, decision: str) -> None:
        """Count a decision, in one of a few fixed words."""
        self.ledger.mark(decision)

    def make(self, *events: Event) -> Sequence[Event]:
        """Add events that were not in the input."""
        self.ledger.made += len(events)
        return events

    def swap(self, event: Event, *events: Event) -> Sequence[Event]:
        """Put new events in the place of one."""
        self.ledger.fold("rewritten")
        self.ledger.made += len(events)
        return events


class Receive(Protocol):
    """Something to receive bursts from: an opened source, a segment, the end of a channel."""

    async def receive(self) -> Flow:
        """The next burst; EndOfChannel at the end. To cancel it loses nothing."""
        ...

    def receive_nowait(self) -> Flow:
        """The next burst if it is there; WouldBlock if not, EndOfChannel at the end."""
        ...


class AsyncStage:
    """The rarer kind, for a stage that must await: it owns its loop between two channels."""

    def __init__(self) -> None:
        self.ledger = StageLedger()

    def begin(self, turn: Turn) -> None:
        """Called once, before `run`, with what the client asked for."""

    async def run(self, receive: ReceiveBursts, send: Send) -> None:
        """Read bursts until the channel ends; send bursts; return when done."""
        raise NotImplementedError(f"{type(self).__name__} must define run(receive, send)")


class ReceiveBursts(Protocol):
    """The end of a channel that an AsyncStage reads: `async for burst in receive`."""

    async def receive(self) -> Burst: ...
    def __aiter__(self) -> AsyncIterator[Burst]: ...


class Send(Protocol):
    """The end of a channel that bursts go into."""

    async def send(self, value: Burst, /) -> None: ...


# -- sources ---------------------------------------------------------------------------------------


@frozen
class Outcome:
    """What the client got of a turn: the ids of its calls, and when the turn was cut off.

    A turn that ended with its upstream response was not cut off.
    """

    calls: tuple[str, ...]
    cut_at: float = inf


class Incoming:
    """A turn's events while its source is open. Only `receive` must be written."""

    async def receive(self) -> Burst:
        """The next burst; EndOfChannel at the end. To cancel it must lose nothing."""
        raise NotImplementedError(f"{type(self).__name__} must define receive()")

    def receive_nowait(self) -> Burst:
        """The next burst if it is there; WouldBlock if not."""
        raise trio.WouldBlock

    def finishing(self, outcome: Outcome | None) -> None:
        """The answer is complete and is written now. None if not all calls were forwarded."""

    def delivered(self, outcome: Outcome | None) -> None:
        """The client has been sent all of it."""

    def fail(self, failure: Failure) -> None:
        """End the turn with a failure, because the server is shutting down."""


class Source(Protocol):
    """Where a turn's events come from."""

    @property
    def real_time(self) -> bool:
        """Whether stamps follow trio's clock, so that deadlines can be waited for."""
        ...

    def open(self, turn: Turn) -> AbstractAsyncContextManager[Incoming]:
        """Begin a turn, at once; leaving the block lets go of it, without waiting.

        An expected failure is reported by the events `Failed` and `TurnEnd`.
        """
        ...


# -- sinks -----------------------------------------------------------------------------------------

Write: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends bytes to the client. Cancelled, it has written all of them or the client has left."""
Result_co = TypeVar("Result_co", covariant=True)


class Sink(Protocol[Result_co]):
    """Encodes a turn's events as an answer. It never awaits."""

    @property
    def finished(self) -> bool:
        """Whether nothing that is fed later can matter."""
        ...

    def feed(self, burst: Burst) -> bytes:
        """What a burst adds to the answer.

        Raises ProxyError when the turn fails before anything was written: the client can still be
        sent a status of its own.
        """
        ...

    def keepalive(self) -> bytes:
        """A sign of life for a long silence; empty if the format has none."""
        ...

    def fail(self, failure: Failure) -> bytes:
        """The end of an answer that has begun, for a failure outside of its turn."""
        ...

    def result(self) -> Result_co:
        """What became of the answer, once it is finished."""
        ...
