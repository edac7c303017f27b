"""What a stage is: a pure, synchronous state machine over events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Protocol, TypeVar, cast

from attrs import frozen

from pipeline.events import Burst, Event, TextDelta
from pipeline.ledger import StageLedger
from pipeline.turn import Turn

NOTHING: tuple[Event, ...] = ()


class Stage:
    """Feed it the events of one turn, in order; what it returns goes on down the pipeline.

    A stage does no I/O, reads no clock and logs nothing. It learns the time from `event.at` and
    asks to be woken by setting `deadline`. Only `feed` must be written.
    """

    deadline: float = inf
    """When `wake` is due, in the source's time; inf means never."""
    done: bool = False
    """Nothing fed from now on can matter: the frame closes everything upstream."""

    def __init__(self) -> None:
        self.ledger = StageLedger()

    def __init_subclass__(cls) -> None:
        """Whoever feeds in a way of its own has not said what may pass at a glance."""
        super().__init_subclass__()
        if "feed" in vars(cls) and "skim" not in vars(cls):
            cls.skim = Stage.skim  # type: ignore[method-assign]

    def begin(self, turn: Turn) -> None:
        """Called once, before anything is fed, with what the client asked for."""

    def feed(self, event: Event) -> Sequence[Event]:
        """Take one event; return those that go on."""
        raise NotImplementedError(f"{type(self).__name__} must define feed(event)")

    def skim(self, text: Sequence[TextDelta]) -> bool:
        """Whether a burst of nothing but text may pass as it is; asked before it is fed.

        Most bursts are such, so a stage that can tell at a glance saves a call for every delta. To
        say yes is to have taken note of all that `feed` would have, and to set no deadline; to say
        no is to have done nothing, and each delta is then fed.
        """
        return False

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
    """The end of a channel that bursts come out of."""

    async def receive(self) -> Burst: ...
    def __aiter__(self) -> AsyncIterator[Burst]: ...
    def close(self) -> None: ...


class Send(Protocol):
    """The end of a channel that bursts go into; it breaks when nobody reads any more."""

    @property
    def ready(self) -> bool:
        """Whether a burst would be taken without waiting."""
        ...

    async def send(self, value: Burst, /) -> None: ...

    def send_nowait(self, value: Burst, /) -> None:
        """Send what is taken without waiting; WouldBlock if it is not."""
        ...

    def close(self) -> None: ...


class AsyncStage:
    """The rarer kind, for a stage that must await: it owns its loop between two channels."""

    def __init__(self) -> None:
        self.ledger = StageLedger()

    def begin(self, turn: Turn) -> None:
        """Called once, before `run`, with what the client asked for."""

    async def run(self, receive: Receive, send: Send) -> None:
        """Read bursts until the channel ends; send bursts; return when done."""
        raise NotImplementedError(f"{type(self).__name__} must define run(receive, send)")


class Source(Protocol):
    """Where a turn's events come from."""

    @property
    def real_time(self) -> bool:
        """Whether stamps follow trio's clock, so that deadlines can be waited for."""
        ...

    async def run(self, send: Send) -> None:
        """Send bursts until the turn ends; sending breaks when nobody reads any more."""
        ...


@frozen
class Outcome:
    """What reached the sink of a run: the ids of the calls, and when the turn was cut off.

    A turn that ended with its upstream response was not.
    """

    calls: tuple[str, ...]
    cut_at: float = inf


class Settling(Source, Protocol):
    """A source that wants to know how its run ended."""

    def settle(self, outcome: Outcome | None) -> None:
        """Called once when the run is over.

        With None if the sink did not get to its end, or was not given all calls for lack of room.
        """
        ...


def settle(source: Source, outcome: Outcome | None) -> None:
    """Tell a source how its run ended, if it wants to know."""
    if hasattr(source, "settle"):  # isinstance of a protocol takes 50 times as long
        cast("Settling", source).settle(outcome)


Result_co = TypeVar("Result_co", covariant=True)


class Sink(Protocol[Result_co]):
    """Where a turn's events go, and what is made of them."""

    async def run(self, receive: Receive) -> Result_co:
        """Read bursts to the end of the turn; return the result."""
        ...
