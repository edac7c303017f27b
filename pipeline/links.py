"""What links the tasks of a run: the ends of its channels, and the stages that share a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from typing import Final

import trio

from pipeline.events import Burst, Event, ResponseEnd, ToolCall, TurnEnd
from pipeline.lane import UNREAD, Lane
from pipeline.ledger import StageLedger
from pipeline.stage import Outcome, Receive

MOST_UNREAD: Final = 16
"""How many bursts of stages that wake again and again wait for a slow reader."""


class Onward:
    """Where a task writes to: the stages that are run for it, and the channel behind them.

    A burst is taken only when there is room, and then all at once: a send that is cancelled has
    taken nothing, and what the stages gave for one that was taken reaches whoever reads, though the
    writer may be gone by then. What cannot be passed on yet waits here, the output of one burst and
    of the stages' deadlines; so a slow client does not keep the stages from cutting the turn off.
    But what was said in time is looked at before that: stamps decide, and not how long the client
    took to make room.
    """

    def __init__(
        self,
        lane: Lane,
        channel: trio.MemorySendChannel[Burst],
        nursery: trio.Nursery,
        *,
        real_time: bool,
    ) -> None:
        self._lane = lane
        self._channel = channel
        self._nursery = nursery
        self._real_time = real_time
        self._unread: list[Burst] = []
        self._room: trio.Event | None = None
        self._gave_nothing = False
        self._waiting = 0
        self._broken = False
        self._mistake: Exception | None = None
        self._alarm: trio.CancelScope | None = None
        self._lag = 0.0
        """How late the newest burst was taken: so much later the stages are woken."""
        self.over = False
        """Whether nothing that is still written can matter."""
        self.leave: Callable[[], None] = lambda: None
        """Makes the writer leave, and all that is upstream of it."""
        self.upstream: trio.MemoryReceiveChannel[Burst] | None = None
        """What the writer copies from, if it does no more than that."""
        self.books: StageLedger | None = None
        """Those of the writer, if it is a stage that awaits."""

    @property
    def nobody_reads(self) -> bool:
        """Tell a downstream that left from a broken resource of the writer's own, as a backend."""
        left = self._channel.statistics().open_receive_channels == 0
        return self.over or self._broken or left

    @property
    def _is_offered(self) -> bool:
        """Whether a burst waits to be taken, which the stages must see before they are woken."""
        upstream = self.upstream
        copied = upstream is not None and upstream.statistics().tasks_waiting_send > 0
        return copied or self._waiting > 0

    # -- the writer's side -----------------------------------------------------------------------

    async def send(self, value: Burst, /) -> None:
        if self._unread or self._gave_nothing:
            self._waiting += 1
            try:
                if self._gave_nothing:  # nobody was woken: a writer that never waits must yield
                    await trio.lowlevel.checkpoint()
                await self.room()
            finally:
                self._waiting -= 1
                self._set_alarm()
        try:
            self.take(value)
        except trio.BrokenResourceError:
            # Where all are cancelled at once, readers may have left first; the reason is the same.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise

    @property
    def ready(self) -> bool:
        """Whether a burst would be taken at once."""
        return not self._unread

    def send_nowait(self, value: Burst, /) -> None:
        if self._unread:
            raise trio.WouldBlock
        self.take(value)

    async def room(self) -> None:
        """Wait until what was taken before has been read."""
        while self._unread and self._room is not None:
            await self._room.wait()

    def refuse(self, value: Burst) -> None:
        """Enter a burst into the books that comes when nobody wants any more."""
        self._lane.refuse(value)

    def take(self, value: Burst) -> None:
        """Put a burst through the stages and pass on what they give, without waiting."""
        if self.over or self._broken:
            raise trio.BrokenResourceError("nobody behind wants any more")
        lane = self._lane
        try:
            out = lane.take(value)
        except Exception as mistake:
            self._mistake = mistake  # a stage's, and not for the writer to make light of
            raise
        if self.books is not None:
            self.books.given += len(value)
        self._gave_nothing = not out
        if lane.done:
            self._end(out)
            if not value or not isinstance(value[-1], TurnEnd):  # else it leaves by itself
                raise trio.BrokenResourceError("the stages behind want no more")
            return
        if self._real_time and value and lane.deadline < inf:
            self._lag = max(0.0, trio.current_time() - value[-1].at)
            self._set_alarm()
        self._pass_on(out)

    def finish(self) -> None:
        """The writer has written everything: pass on what the stages still hold."""
        if self._mistake is not None:
            raise self._mistake
        if not self.over:
            self._end(())

    def settle(self) -> None:
        """The writer has left, in whatever way: nothing more comes through the stages."""
        if not self.over:
            self._stop()
            self._lane.abandon()

    def close(self) -> None:
        """Tell whoever reads that this was all, once it has been read."""
        self.finish()
        self._channel.close()

    # -- passing on ------------------------------------------------------------------------------

    def _end(self, out: Sequence[Event]) -> None:
        self._stop()
        self._pass_on((*out, *self._lane.close()))
        self._channel.close()

    def _stop(self) -> None:
        self.over = True
        if self._alarm is not None:
            self._alarm.cancel()

    def _pass_on(self, out: Sequence[Event]) -> None:
        """Give it to whoever waits for it, or else leave it for when somebody does."""
        if not out:
            return
        burst = tuple(out)
        if not self._unread:
            try:
                self._channel.send_nowait(burst)
            except trio.WouldBlock:
                self._room = trio.Event()
                self._nursery.start_soon(self._wait_and_pass_on, self._channel.clone())
            except trio.BrokenResourceError:
                self._broken = True
                self._lose(burst)
                return
            else:
                return
        self._unread.append(burst)

    async def _wait_and_pass_on(self, channel: trio.MemorySendChannel[Burst]) -> None:
        """Pass on what waits here. The channel is our own: the writer may leave meanwhile."""
        try:
            with channel:
                while self._unread:
                    await channel.send(self._unread[0])
                    del self._unread[0]
        except trio.BrokenResourceError:
            self._broken = True
        finally:
            for burst in self._unread:
                self._lose(burst)
            self._unread.clear()
            if self._room is not None:
                self._room.set()

    def _lose(self, burst: Burst) -> None:
        """Enter into the books that a burst reached nobody."""
        if self._lane.stages:
            self._lane.unread(burst)
        elif self.books is not None:
            self.books.given -= len(burst)
            self.books.drop(UNREAD, len(burst))

    # -- deadlines -------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        due = self._lane.deadline + self._lag
        if due == inf or self.over or not self._real_time:
            return
        if self._alarm is None:
            self._alarm = trio.CancelScope(deadline=due)
            self._nursery.start_soon(self._watch)
        elif due < self._alarm.deadline:
            self._alarm.deadline = due

    async def _watch(self) -> None:
        """Wake the stages when they are due, as long as they are."""
        while self._alarm is not None and self._lane.deadline < inf:
            with self._alarm:
                await trio.sleep_forever()
            if self.over:
                return
            if self._is_offered:
                break  # it sets the alarm again when it is taken, or given up
            if trio.current_time() >= self._lane.deadline + self._lag:
                out = self._lane.wake()
                if self._lane.done:  # before anybody reads: a slow client must not delay the cut
                    self._end(out)
                    self.leave()
                    return
                self._pass_on(out)
                if len(self._unread) >= MOST_UNREAD:
                    await self.room()
            self._alarm = trio.CancelScope(deadline=self._lane.deadline + self._lag)
        self._alarm = None


class CountedReceive:
    """The reading end of a channel, with every event read entered into the books."""

    def __init__(self, channel: Receive, count: Callable[[int], None]) -> None:
        self._channel = channel
        self._count = count

    def _note(self, burst: Burst) -> None:
        self._count(len(burst))

    async def receive(self) -> Burst:
        burst = await self._channel.receive()
        self._note(burst)
        return burst

    def __aiter__(self) -> AsyncIterator[Burst]:
        return self

    async def __anext__(self) -> Burst:
        try:
            burst = await self._channel.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        self._note(burst)
        return burst

    def close(self) -> None:
        self._channel.close()


class Delivered(CountedReceive):
    """The end that the sink reads; it also knows which calls and which end have reached it."""

    def __init__(self, channel: Receive, count: Callable[[int], None]) -> None:
        super().__init__(channel, count)
        self._calls: list[str] = []
        self._cut_at = inf
        self._truncated = self._response_ended = False

    def outcome(self) -> Outcome | None:
        return None if self._truncated else Outcome(tuple(self._calls), self._cut_at)

    def _note(self, burst: Burst) -> None:
        super()._note(burst)
        for event in burst:
            if type(event) is ToolCall:
                self._calls.append(event.call_id)
                self._response_ended = False
            elif type(event) is ResponseEnd:
                self._response_ended = True
            elif type(event) is TurnEnd:
                self._truncated = event.calls_truncated
                self._cut_at = inf if self._response_ended else event.at
