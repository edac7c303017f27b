"""A turn on a live app-server: from its opening to the moment it is let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import trio
from attrs import evolve

from pipeline.errors import Failure, ProxyError
from pipeline.events import (
    Burst,
    Failed,
    ResponseEnd,
    ResponseEnds,
    RetryNotice,
    TextDelta,
    TurnEnd,
    TurnStart,
)
from pipeline.stage import Incoming, Outcome
from pipeline.turn import Turn
from sources.app_server.protocol.client import BackendGoneError, BackendSilentError
from sources.app_server.protocol.mailbox import Delivery, Mailbox, MailboxClosedError
from sources.app_server.protocol.rpc import RpcError
from sources.app_server.protocol.thread import ThreadPlan
from sources.app_server.turn.answer import Answer, MadeCall
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.kept import KeptThread
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.reading import TurnReader
from sources.app_server.turn.record import Recorder
from sources.app_server.turn.session import Session
from sources.decode.turn_decoder import Watcher

NO_SIGN_OF_LIFE: Final = (RetryNotice, TurnStart)
"""A backend that only says it tries again has not been heard from."""


class AppServerTurn(Incoming):
    """The events of one turn, read from its mailbox.

    A short task opens the thread, because receiving may be cancelled at any time, and then watches
    over the time limits. Where the client was given calls, the thread is kept for its follow-up
    instead of being let go, if the backend can; a turn that follows up on it continues it. Clients
    see no difference.
    """

    def __init__(
        self,
        backend: Backend,
        turn: Turn,
        bounds: Bounds,
        *,
        record: Callable[[], Recorder | None] = lambda: None,
        watch: Watcher | None = None,
    ) -> None:
        self._backend = backend
        self._turn = turn
        self._bounds = bounds
        self._new_record = record
        self._record: Recorder | None = None
        self._watch = watch
        self._continues: KeptThread | None = None
        self._session: Session | None = None
        self._mailbox = Mailbox()
        self._late_deliveries: Sequence[Delivery] = ()
        self._reader: TurnReader | None = None
        """Set when the thread is open and the turn has begun."""
        self._next: Burst = ()
        """What is given out before anything from the mailbox."""
        self._failure: Failure | None = None
        self._mistake: Exception | None = None
        self._over = False
        self._left = False
        """Whether nothing is received any more. The thread may have been opened at that moment."""
        self._outcome: Outcome | None = None
        self._response_ends: ResponseEnds = "unknown"
        self._answer = Answer(turn)
        self._began = False
        """Whether anything was given out."""
        self._started = self._heard = trio.current_time()
        self._spoke = False
        """Whether the backend has said anything yet."""
        self._alarm = trio.CancelScope()

    # -- opening ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open the thread; then watch over the limits until this is cancelled."""
        if self._left:
            return
        try:
            await self._open()
        except ProxyError as error:
            self.fail(error.failure)
            return
        except Exception as mistake:  # noqa: BLE001  # raised where the turn is received
            self._mistake = mistake
            self._mailbox.notify()
            return
        finally:
            if self._reader is None or self._left:
                self._let_go()
        while True:
            self._alarm = trio.CancelScope(deadline=self._due())
            with self._alarm:
                await trio.sleep_forever()
            if trio.current_time() >= self._due():
                self._time_is_over()
                return

    async def _open(self) -> None:
        session = self._session = self._continued() or Session(
            await self._backend.lease(), self._mailbox
        )
        self._started = self._heard = trio.current_time()
        try:
            with trio.fail_after(min(self._bounds.first_event, self._bounds.total)):
                if self._continues is not None:
                    self._read_on(self._continues)
                    session.answer()
                else:
                    self._begin_record(session)
                    place = session.place
                    can, sees_files = place.capabilities, place.sees_files
                    plan = ThreadPlan(self._turn, can, place.workspace, sees_files=sees_files)
                    await session.start(plan)
        except trio.TooSlowError:
            raise ProxyError(_too_slow(self._bounds)) from None
        except RpcError as error:
            raise ProxyError(error.failure) from error
        except (BackendGoneError, BackendSilentError) as error:
            raise ProxyError(unavailable(str(error))) from error
        self._reader = self._reader or self._new_reader(session)
        self._mailbox.notify()

    def _continued(self) -> Session | None:
        """The session of the thread that this turn continues, if there is one."""
        found = self._backend.kept.take(self._turn)
        if found is None:
            return None
        kept, outputs = found
        session = kept.session
        self._late_deliveries = session.late()
        if session.ended or session.overflowed:
            session.place.nursery.start_soon(session.let_go)
            return None
        session.give(outputs)
        unused, self._mailbox = self._mailbox, session.mailbox
        unused.notify()  # who waits there is to wait here
        self._continues = kept
        return session

    def _read_on(self, kept: KeptThread) -> None:
        """Read what arrived since the last answer as if it came now: it is there at once."""
        session, now = kept.session, trio.current_time()
        self._begin_record(session, continued=True, response_open=kept.response_open)
        if self._record is not None:
            for message in session.messages_of(kept.late):
                self._record.write(message, now)
        # Calls that were read before are a part of this answer, and so is what follows them.
        session.decoder.resume(response_open=kept.response_open and not kept.late)
        letters = tuple(letter for delivery in self._late_deliveries for letter in delivery.letters)
        self._reader = self._new_reader(session)
        late = (*kept.late, *self._reader.read(Delivery(letters, now)))
        session.learn()
        if late:
            self._next = self._noted(tuple(evolve(event, at=now) for event in late))

    def _begin_record(self, session: Session, **going_on: bool) -> None:
        place = session.place
        self._response_ends = place.learned.response_ends
        self._record = self._new_record()
        if self._record is not None:
            self._record.begin(
                self._turn,
                backend=place.client.user_agent,
                response_ends=self._response_ends,
                raw_items=place.capabilities.raw_events,
                **going_on,
            )

    def _new_reader(self, session: Session) -> TurnReader:
        return TurnReader(session.decoder, session.aliases, self._record, self._watch)

    # -- receiving -------------------------------------------------------------------------------

    async def receive(self) -> Burst:
        while (burst := self._take()) is None:
            if (due := self._due()) < self._alarm.deadline:
                self._alarm.deadline = due
            await self._mailbox.wait()
        return burst

    def receive_nowait(self) -> Burst:
        burst = self._take()
        if burst is None:
            raise trio.WouldBlock
        return burst

    def _take(self) -> Burst | None:
        """The next burst; None if there is none yet."""
        if self._over:
            raise trio.EndOfChannel
        if self._mistake is not None:
            raise self._mistake
        burst: Burst | None
        if self._next:
            burst, self._next = self._next, ()
        elif self._failure is not None:
            now = trio.current_time()
            burst = (Failed(self._failure, at=now), TurnEnd("failed", at=now))
        else:
            burst = self._read()
            if burst is None:
                return None
        self._over = isinstance(burst[-1], TurnEnd)
        if not self._over and self._awaits_outputs(burst):
            self._next = (TurnEnd("tool_calls", at=burst[-1].at),)
        return burst

    def _read(self) -> Burst | None:
        """The next events from the mailbox."""
        session, reader, mailbox = self._session, self._reader, self._mailbox
        if session is None or reader is None:
            return None
        while not session.ended:
            if not mailbox and not mailbox.closed:
                return None
            try:
                deliveries = session.take_nowait()
            except MailboxClosedError as error:
                self.fail(unavailable(str(error)))
                return self._take()
            burst = reader.read_all(deliveries)
            session.ended = reader.ended
            session.learn()
            if burst:
                return self._noted(burst)
        raise trio.EndOfChannel

    def _noted(self, burst: Burst) -> Burst:
        """Remember of a burst what a follow-up must repeat, and that the backend is alive."""
        self._answer.note(burst)
        if type(burst[-1]) is TextDelta or any(type(e) not in NO_SIGN_OF_LIFE for e in burst):
            self._heard, self._spoke = burst[-1].at, True
        if self._began:
            return burst
        self._began = True
        return (TurnStart(self._response_ends, at=burst[0].at), *burst)

    def _awaits_outputs(self, burst: Burst) -> bool:
        """Whether nothing more can come before the outputs of this answer's calls."""
        session = self._session
        answer = self._answer
        if not answer.calls or answer.in_response or session is None or not answer.waits(session):
            return False
        ends = session.place.learned.response_ends == "told"
        return ends and any(isinstance(event, ResponseEnd) for event in burst)

    # -- limits ----------------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        self._failure = self._failure or failure
        if self._session is not None:
            self._session.interrupt()  # now: its client may not read, and so not leave, for long
        self._mailbox.notify()

    def _due(self) -> float:
        """When the turn has been waited for long enough."""
        end = self._started + self._bounds.total
        if self._mailbox or self._next:
            return end  # it is the client that takes its time
        patience = self._bounds.idle if self._spoke else self._bounds.first_event
        if self._may_wait_for_outputs():
            patience = min(self._bounds.outputs, patience)
        return min(end, self._heard + patience)

    def _may_wait_for_outputs(self) -> bool:
        """Whether a silence may mean that only a follow-up can bring more."""
        session = self._session
        if self._response_ends == "told" or session is None:
            return False
        return bool(session.requests and self._answer.calls)

    def _time_is_over(self) -> None:
        """End a turn that waits for its outputs; fail any other."""
        now = trio.current_time()
        if self._may_wait_for_outputs() and now < self._started + self._bounds.total:
            self._next = (TurnEnd("tool_calls", at=now),)
            self._mailbox.notify()
        else:
            self.fail(_too_slow(self._bounds))

    # -- leaving ---------------------------------------------------------------------------------

    def finishing(self, outcome: Outcome | None) -> None:
        session = self._session
        if session is not None and self._in_time(session, outcome) is None:
            session.interrupt()

    def delivered(self, outcome: Outcome | None) -> None:
        self._outcome, session = outcome, self._session
        if session is None or outcome is None or outcome.cut_at == inf:
            return
        if self._record is not None:
            self._record.cut(outcome.cut_at)
        if self._backend.kept.enabled and self._answer.may_be_kept(
            session, ends_are_told=self._ends_are_told
        ):
            session.place.client.problems.report("missing_response_end", "calls")

    def leave(self) -> None:
        """Keep the thread if its client now has calls to run; else let it go. Nothing is awaited:
        what must still be said to the backend is said from the backend's nursery."""
        self._left = True
        if self._reader is not None:  # else the task that opens the thread lets go of it
            self._let_go()

    def _let_go(self) -> None:
        if self._record is not None:
            self._record.close()
        session = self._session
        if session is None:
            return
        made = self._in_time(session, self._outcome)
        if made is not None and session.alive:
            self._backend.kept.keep(self._answer.kept(session, *made))
            return
        session.interrupt()
        if session.opened and session.alive:
            session.place.nursery.start_soon(session.let_go)
        else:
            session.release()

    @property
    def _ends_are_told(self) -> bool:
        return self._response_ends == "told"

    def _in_time(
        self, session: Session, outcome: Outcome | None
    ) -> tuple[Sequence[MadeCall], Burst] | None:
        """The calls that a follow-up answers, and those that it gets; None to let the turn go."""
        if outcome is None or not self._backend.kept.enabled:
            return None
        return self._answer.in_time(session, outcome, ends_are_told=self._ends_are_told)


def unavailable(reason: str) -> Failure:
    return Failure(
        f"the backend went away: {reason}; send the request again",
        status=503,
        type="server_error",
        code="server_is_overloaded",
        retry_after=1.0,
    )


def _too_slow(bounds: Bounds) -> Failure:
    return Failure(
        "the backend did not answer in time: nothing was heard for "
        f"{bounds.first_event:g} s at the start, {bounds.idle:g} s in the middle, or the turn took "
        f"over {bounds.total:g} s; its upstream may be unreachable",
        status=504,
        type="server_error",
        code="timeout",
    )
