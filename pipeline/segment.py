"""Runs stages on what they receive: the only code that feeds a stage.

Everything that runs is something to receive from. A source opens one; a segment, which is a run of
stages on top of another, is one; and the end of a channel is one. The writer of the answer asks
the last of them for the next burst, so the client's pace pulls everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import inf
from typing import Any, Final, TypeAlias, cast

import trio

from pipeline.events import Event, TextDelta, Tick
from pipeline.stage import Flow, Receive, Stage

LATE: Final = "came after the end"
UNREAD: Final = "nothing downstream read it"
ONLY_TEXT: Final = frozenset({TextDelta})
WatchStage: TypeAlias = Callable[[Stage, Sequence[Event], Sequence[Event]], None]
FeedText: TypeAlias = Callable[[Sequence[TextDelta]], "Sequence[Event] | None"]


class Stages:
    """A run of stages, fed one after the other without trio.

    One run of all stages and many runs of one give the same events. `watch` is called with each
    stage, what it was given and what it returned.
    """

    def __init__(self, stages: Iterable[Stage], watch: WatchStage | None = None) -> None:
        self.stages = tuple(stages)
        declared = [_declared(cast("Any", type(stage))) for stage in self.stages]
        self._wanted = [wants for wants, _ in declared]
        self._feed_text: list[FeedText | None] = [
            stage.feed_text if reads_text else None
            for stage, (_, reads_text) in zip(self.stages, declared, strict=True)
        ]
        self._watch = watch
        self.deadline = inf
        """The earliest deadline of its stages."""
        self.done = False
        """Whether one of the stages is done."""
        self._passed = 0
        """Text that all stages let pass and that is not in the ledger yet."""
        self._look()

    def take(self, flow: Flow) -> Flow:
        """Put a burst through every stage."""
        text = _only_text(flow)
        if not text or self.done or self.deadline < inf or self._watch is not None:
            return self._pour(flow, 0)
        for position in range(len(self.stages)):
            out = self._text(position, text)
            if out is not text:
                for stage in self.stages[:position]:
                    _count(stage, len(text), len(text))
                if out is None:
                    return self._pour(flow, position)
                _count(self.stages[position], len(text), len(out))
                given = self._pour(out, position + 1)
                self._look()
                return given
        self._passed += len(text)
        return flow

    def close(self) -> Sequence[Event]:
        """The input ended: collect what every stage still holds, first stage first."""
        out: list[Event] = []
        for position, stage in enumerate(self.stages):
            if not stage.done:
                rest = stage.close()
                _count(stage, 0, len(rest))
                self._show(stage, (), rest)
                out += cast("Sequence[Event]", self._pour(rest, position + 1))
        self.settle()
        return out

    def settle(self, reason: str = "") -> None:
        """Close the books; `reason` tells why what is still held comes out no more."""
        for stage in self.stages:
            _count(stage, self._passed, self._passed)
            if reason:
                stage.ledger.settle(reason)
            else:
                stage.ledger.settle()
        self._passed = 0

    def unread(self, flow: Flow) -> None:
        """Enter into the books that what the last stage gave was not received."""
        if self.stages and (events := _events_in(flow)):
            ledger = self.stages[-1].ledger
            ledger.given -= events
            ledger.drop(UNREAD, events)

    def _text(self, position: int, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        """What a stage gives for a run of text; None if it must be fed one by one."""
        wanted, feed_text = self._wanted[position], self._feed_text[position]
        if wanted is not None and TextDelta not in wanted:
            return text
        return None if feed_text is None else feed_text(text)

    def _pour(self, flow: Flow, position: int) -> Flow:
        """Put a burst through the stages from a position on."""
        text = _only_text(flow)
        fed = False
        for place in range(position, len(self.stages)):
            if not flow:
                break
            stage, given = self.stages[place], flow
            if text and stage.deadline == inf and not stage.done:
                out = self._text(place, text)
                if out is not None:
                    _count(stage, len(text), len(out))
                    self._show(stage, given, out)
                    flow = out
                    text = text if out is text else _only_text(out)
                    fed = True
                    continue
            fed = True
            flow = _fed(stage, self._wanted[place], flow)
            self._show(stage, given, flow)
            text = _only_text(flow) if text else ()
        if fed:
            self._look()
        return flow

    def _show(self, stage: Stage, given: Flow, returned: Flow) -> None:
        if self._watch is not None:
            self._watch(stage, without_ticks(given), without_ticks(returned))

    def _look(self) -> None:
        deadline, done = inf, False
        for stage in self.stages:
            if stage.done:
                done = True
            deadline = min(deadline, stage.deadline)
        self.deadline, self.done = deadline, done


class Clock:
    """The deadlines of a whole chain: the segment on a live source waits for the earliest."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._ticked = -inf
        self._waiting: trio.CancelScope | None = None

    @property
    def idle(self) -> bool:
        """Whether there is no deadline, and no other task that can set one meanwhile."""
        return len(self.segments) == 1 and self.segments[0].deadline == inf

    def due(self) -> float:
        """The earliest deadline for which there was no tick yet."""
        dues = [s.deadline for s in self.segments if s.deadline > self._ticked]
        return min(dues, default=inf)

    def tick(self) -> Tick | None:
        """The tick for the deadline that has passed, if one has."""
        due = self.due()
        if due > trio.current_time():
            return None
        self._ticked = due
        return Tick(due)

    async def receive(self, upstream: Receive) -> Flow:
        """What comes next; or a tick, if a deadline passes before."""
        while True:
            with trio.CancelScope(deadline=self.due()) as self._waiting:
                return await upstream.receive()
            self._waiting = None
            try:
                return upstream.receive_nowait()  # it may have come at the same moment
            except trio.WouldBlock:
                if (tick := self.tick()) is not None:
                    return (tick,)

    def changed(self, deadline: float) -> None:
        """A segment has another deadline, perhaps while the first segment waits."""
        waiting = self._waiting
        if waiting is not None and self._ticked < deadline < waiting.deadline:
            waiting.deadline = deadline


class Segment:
    """A run of stages on top of something to receive from; itself something to receive from.

    Time is an event: only the segment on a live source has a clock, and waits for the deadlines of
    the whole chain. When one passes, a tick follows the events before it through the chain. So a
    chain of one segment, a chain of many and a replay decide alike, however slowly a client reads.
    """

    def __init__(
        self,
        upstream: Receive,
        stages: Stages,
        *,
        clock: Clock | None = None,
        on_source: bool = False,
    ) -> None:
        self._upstream = upstream
        self._stages = stages
        self._clock = clock
        self._on_source = on_source
        self._ended = False
        self._settled = False
        self._hurried = False
        """Whether the last burst came without waiting: then others run before the next."""
        if clock is not None:
            clock.segments.append(self)

    @property
    def deadline(self) -> float:
        return self._stages.deadline

    async def receive(self) -> Flow:
        """The next burst. EndOfChannel if there is none, or nothing later can matter."""
        while not self._ended:
            try:
                out = self._take(await self._next())
            except trio.EndOfChannel:
                out = self._close()
            if out:
                return tuple(out)
        raise trio.EndOfChannel

    def receive_nowait(self) -> Flow:
        """The next burst if it is there. WouldBlock if not, and EndOfChannel as `receive`."""
        while not self._ended:
            try:
                out = self._take(self._upstream.receive_nowait())
            except trio.EndOfChannel:
                out = self._close()
            if out:
                return tuple(out)
        raise trio.EndOfChannel

    def unread(self, flow: Flow) -> None:
        """What was received from here got no further."""
        self._stages.unread(flow)

    def abandon(self) -> None:
        """Nothing more is received from here: what its stages hold is entered as unread."""
        self._ended = True
        self._clock = None  # a cycle: without it the turn is freed at once
        if not self._settled:
            self._settled = True
            self._stages.settle(UNREAD)

    async def _next(self) -> Flow:
        """What is there already, before any deadline; or what comes next."""
        if self._hurried:
            self._hurried = False
            await trio.lowlevel.checkpoint()
        try:
            flow = self._upstream.receive_nowait()
        except trio.WouldBlock:
            pass  # nothing is awaited in here: an exception raised there would keep this one
        else:
            self._hurried = self._on_source
            return flow
        if self._clock is None or not self._on_source or self._clock.idle:
            return await self._upstream.receive()
        tick = self._clock.tick()
        if tick is None:
            return await self._clock.receive(self._upstream)
        self._hurried = True
        return (tick,)

    def _take(self, flow: Flow) -> Flow:
        stages = self._stages
        before = stages.deadline
        try:
            out = stages.take(flow)
        except BaseException:
            self._ended = True
            raise
        if stages.done:
            return (*out, *self._close())
        if self._clock is not None and stages.deadline != before:
            self._clock.changed(stages.deadline)
        return out

    def _close(self) -> Sequence[Event]:
        self._ended = True
        out = self._stages.close()
        self._settled = True
        return out


def _only_text(flow: Flow) -> Sequence[TextDelta]:
    """The events, if all of them are text; else none."""
    return cast("Sequence[TextDelta]", flow) if ONLY_TEXT.issuperset(map(type, flow)) else ()


def without_ticks(flow: Flow) -> list[Event]:
    """The events of a burst alone."""
    return [event for event in flow if not isinstance(event, Tick)]


def _events_in(flow: Flow) -> int:
    return sum(type(event) is not Tick for event in flow)


def _count(stage: Stage, taken: int, given: int) -> None:
    stage.ledger.taken += taken
    stage.ledger.given += given


def _fed(stage: Stage, wanted: frozenset[type] | None, flow: Flow) -> Flow:
    """Feed a burst to one stage, waking it first where deadlines of its lie before an event.

    A tick wakes it like a later event, and goes on.
    """
    out: list[Event | Tick] = []
    feed = stage.feed
    ticks = 0
    for place, event in enumerate(flow):
        if event.at >= stage.deadline:
            out += _woken(stage, event.at)
        kind = type(event)
        if kind is Tick:
            ticks += 1
            out.append(event)
        elif stage.done:
            rest = _events_in(flow[place:])
            stage.ledger.drop(LATE, rest)
            _count(stage, rest, 0)
            flow = flow[:place]
            break
        elif wanted is None or kind in wanted:
            out += feed(cast("Event", event))
        else:
            out.append(event)
    _count(stage, len(flow) - ticks, len(out) - ticks)
    return out


def _woken(stage: Stage, now: float) -> Sequence[Event]:
    """Wake a stage as often as it is due until now. It is not due again unless it says so."""
    out: list[Event] = []
    due = -inf
    while due < stage.deadline <= now and not stage.done:
        due, stage.deadline = stage.deadline, inf
        out += stage.wake(due)
    return out


@cache
def _declared(stage: type) -> tuple[frozenset[type] | None, bool]:
    """Which events a stage's `feed` wants, and whether it has a `feed_text`.

    A subclass that overrides feed() must not inherit what was declared about another feed().
    """
    return _own(stage, "wants"), _own(stage, "feed_text") is not None


def _own(stage: type, name: str) -> Any:
    for cls in stage.__mro__:
        if name in vars(cls):
            return vars(cls)[name]
        if "feed" in vars(cls):
            return None
    return None
