"""A turn on a live app-server as a source of events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

import trio
from attrs import evolve

from pipeline.errors import Failure, ProxyError
from pipeline.events import (
    Burst,
    Event,
    Failed,
    ResponseEnd,
    ResponseEnds,
    RetryNotice,
    TextDelta,
    ToolCall,
    TurnEnd,
    TurnStart,
    Usage,
)
from pipeline.stage import Outcome, Send
from pipeline.turn import Turn
from sources.app_server.protocol.client import BackendGoneError, BackendSilentError
from sources.app_server.protocol.images import check_images
from sources.app_server.protocol.mailbox import Delivery, MailboxClosedError, TakeAtOnce
from sources.app_server.protocol.rpc import RpcError
from sources.app_server.protocol.sendable import check_sendable
from sources.app_server.protocol.thread import ThreadPlan
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.kept import KeptThread
from sources.app_server.turn.meaning import Call
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.reading import TurnReader, is_brief_text
from sources.app_server.turn.record import Recorder
from sources.app_server.turn.session import Session
from sources.decode.turn_decoder import Watcher

NO_SIGN_OF_LIFE: Final = (RetryNotice, TurnStart)
"""A backend that only says it tries again has not been heard from."""
LAST_WORD: Final = 5.0
"""How long a client that does not read is waited for to be told of a failure."""
OUTCOME: Final = 90.0
"""How long a client may take to read its calls and have the thread kept for their outputs."""


class AppServerTurn:
    """Runs one Turn: thread, history, turn, events; and lets everything go at the end.

    Where the client was given calls, the thread is kept for its follow-up instead, if the backend
    can; and a Turn that follows up on it continues it. Clients see no difference.
    """

    real_time = True

    def __init__(
        self,
        backend: Backend,
        turn: Turn,
        bounds: Bounds | None = None,
        *,
        record: Recorder | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self._watch = watch
        self._backend = backend
        self._turn = turn
        self._bounds = bounds or backend.bounds
        self._record = record
        self._offered = frozenset(tool.name for tool in turn.offered)
        self._continues: KeptThread | None = None
        self._late_deliveries: Sequence[Delivery] = ()
        self._response_ends: ResponseEnds = "unknown"
        self._said: list[str] = []
        self._said_before_response = 0
        self._calls: list[_Made] = []
        self._ends: list[Usage | ResponseEnd] = []
        self._in_response = False
        """Whether the response that made the last call has not been seen to end."""
        self._began = False
        """Whether anything was passed on."""
        self._late: Burst = ()
        """What was said on a kept thread while nobody listened."""
        self._unsent: Burst = ()
        """What was read and has not been passed on yet."""
        self._started = self._heard = 0.0
        self._spoke = False
        """Whether the backend has said anything yet."""
        self._outcome: Outcome | None = None
        self._outcome_known: trio.Event | None = None
        self._settled = False

    def settle(self, outcome: Outcome | None) -> None:
        """Told how the run ended: which calls the client got, if it got all that it was to get."""
        self._outcome, self._settled = outcome, True
        if self._outcome_known is not None:
            self._outcome_known.set()
        if self._record is not None:
            if outcome is not None and outcome.cut_at < inf:
                self._record.cut(outcome.cut_at)
            self._record.close()

    async def run(self, send: Send) -> None:
        try:
            check_sendable(self._turn)
            check_images(self._turn.items)
            session = await self._open()
            self._started = self._heard = trio.current_time()
            try:
                await self._play(session, send)
            finally:
                if not self._may_be_kept(session):  # else it is decided when more is known
                    session.interrupt()
                if session.opened and session.alive:
                    session.place.nursery.start_soon(self._leave, session)
                else:
                    session.release()
        except ProxyError as error:
            now = trio.current_time()
            with trio.move_on_after(LAST_WORD):
                await send.send((Failed(error.failure, at=now), TurnEnd("failed", at=now)))

    # -- beginning -------------------------------------------------------------------------------

    async def _open(self) -> Session:
        """The session this turn continues, or a new one."""
        found = self._backend.kept.take(self._turn)
        if found is not None:
            kept, outputs = found
            session = kept.session
            self._late_deliveries = session.late()
            if not (session.ended or session.overflowed):
                session.give(outputs)
                self._continues = kept
                return session
            session.place.nursery.start_soon(session.let_go)
        return Session(await self._backend.lease())

    def _read_on(self, kept: KeptThread, deliveries: Sequence[Delivery]) -> None:
        """Read what was said while nobody listened, as if it came now: it is there at once."""
        session, now = kept.session, trio.current_time()
        self._begin_record(session, continued=True, response_open=kept.response_open)
        if self._record is not None:
            for message in session.messages_of(kept.late):
                self._record.write(message, now)
        # Calls that were read before are a part of this answer, and so is what follows them.
        session.decoder.resume(response_open=kept.response_open and not kept.late)
        letters = tuple(letter for delivery in deliveries for letter in delivery.letters)
        late = (*kept.late, *self._reader(session).read(Delivery(letters, now)))
        self._late = tuple(evolve(event, at=now) for event in late)
        session.learn()

    def _begin_record(self, session: Session, **going_on: bool) -> None:
        place = session.place
        self._response_ends = place.learned.response_ends
        if self._record is not None:
            self._record.begin(
                self._turn,
                backend=place.client.user_agent,
                response_ends=self._response_ends,
                raw_items=place.capabilities.raw_events,
                **going_on,
            )

    def _reader(self, session: Session) -> TurnReader:
        return TurnReader(session.decoder, session.aliases, self._record, self._watch)

    async def _begin(self, session: Session) -> None:
        try:
            with trio.fail_after(min(self._bounds.first_event, self._bounds.total)):
                if self._continues is not None:
                    self._read_on(self._continues, self._late_deliveries)
                    await session.answer()
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

    # -- playing ---------------------------------------------------------------------------------

    async def _play(self, session: Session, send: Send) -> None:
        await self._begin(session)
        reader = self._reader(session)
        self._pass_on(self._late)
        while True:
            # One scope serves many bursts: a scope for each would cost more than all the rest. So
            # it may end for a silence that was broken since, and then another one is opened.
            with trio.CancelScope(deadline=self._due(session)) as waiting:
                await self._listen(session, reader, send, waiting)
                return
            self._silent(session)

    def _pass_on(self, burst: Burst) -> None:
        """Have events sent next, and remember what a follow-up must repeat to be one."""
        self._note(burst)
        if burst and not self._began:
            self._began = True
            burst = (TurnStart(self._response_ends, at=burst[0].at), *burst)
        self._unsent = burst

    async def _listen(
        self, session: Session, reader: TurnReader, send: Send, waiting: trio.CancelScope
    ) -> None:
        """Pass on what the backend says until the turn is over."""
        at_once = partial(self._pass_on_text, reader, send)
        while self._unsent or not session.ended:
            if not self._unsent:
                self._pass_on(await self._next(session, reader, at_once))
            if self._unsent:
                await send.send(self._unsent)
                sent, self._unsent = self._unsent, ()
                if isinstance(sent[-1], TurnEnd):
                    return
                if type(sent[-1]) is TextDelta or any(type(e) not in NO_SIGN_OF_LIFE for e in sent):
                    self._heard, self._spoke = trio.current_time(), True
                if self._awaits_outputs(session, sent):
                    self._pass_on((TurnEnd("tool_calls", at=sent[-1].at),))
            if (due := self._due(session)) < waiting.deadline:
                waiting.deadline = due

    def _pass_on_text(self, reader: TurnReader, send: Send, delivery: Delivery) -> bool:
        """Pass on words in the middle of an answer while this turn's task waits, and need not wake.

        The first of an answer are none of them: they set the clock by which it is waited for.
        """
        if not (self._spoke and send.ready and is_brief_text(delivery)):
            return False
        burst = reader.read(delivery)
        self._note(burst)
        if burst:
            self._heard = delivery.at
            send.send_nowait(burst)
        return True

    async def _next(self, session: Session, reader: TurnReader, at_once: TakeAtOnce) -> Burst:
        try:
            deliveries = await session.next(at_once)
            await session.answer()
        except (MailboxClosedError, BackendGoneError) as error:
            raise ProxyError(unavailable(str(error))) from error
        burst = reader.read_all(deliveries)
        session.ended = reader.ended
        session.learn()
        return burst

    def _awaits_outputs(self, session: Session, sent: Burst) -> bool:
        """Whether nothing more can come before the outputs of this answer's calls."""
        if not self._made_calls(session) or session.place.learned.response_ends != "told":
            return False
        return any(isinstance(event, ResponseEnd) for event in sent)

    def _made_calls(self, session: Session) -> bool:
        """Whether calls were made that Codex waits for, as it was given their tools."""
        if not self._calls or not session.place.capabilities.dynamic_tools:
            return False
        return not self._offered.isdisjoint(made.call.name for made in self._calls)

    def _due(self, session: Session) -> float:
        """When the turn has been waited for long enough."""
        end = self._started + self._bounds.total
        if self._unsent:
            return end  # it is the client that takes its time
        patience = self._bounds.idle if self._spoke else self._bounds.first_event
        if self._may_wait_for_outputs(session):
            patience = min(self._bounds.outputs, patience)
        return min(end, self._heard + patience)

    def _may_wait_for_outputs(self, session: Session) -> bool:
        """Whether a silence may mean that only a follow-up can bring more."""
        return self._response_ends != "told" and bool(session.requests and self._calls)

    def _silent(self, session: Session) -> None:
        """Give up, or end a turn that waits for its outputs, if it is time to."""
        now = trio.current_time()
        if now < self._due(session):
            return
        waits = self._may_wait_for_outputs(session)
        if self._unsent or not waits or now >= self._started + self._bounds.total:
            raise ProxyError(_too_slow(self._bounds))
        self._pass_on((TurnEnd("tool_calls", at=now),))

    def _note(self, burst: Burst) -> None:
        """Remember what a follow-up must repeat to be one."""
        for event in burst:
            if isinstance(event, TextDelta):
                self._said.append(event.text)
            elif isinstance(event, RetryNotice):
                del self._said[self._said_before_response :]  # it is said again
            elif isinstance(event, ToolCall):
                self._calls.append(_Made(event, len(self._said)))
                self._in_response = True
            elif isinstance(event, Usage | ResponseEnd):
                self._ends.append(event)
                self._said_before_response = len(self._said)
                self._in_response = self._in_response and isinstance(event, Usage)

    # -- leaving ---------------------------------------------------------------------------------

    def _may_be_kept(self, session: Session) -> bool:
        """Whether the thread holds nothing but what its client was given, and waits for outputs.

        Where the end of a response is told, a turn that was left before it was cut in the middle.
        """
        cut = self._in_response and self._response_ends == "told"
        if session.ended or cut or not self._made_calls(session):
            return False
        # A call of a tool that Codex was not given it answers itself, and goes on.
        return self._offered.issuperset(made.call.name for made in self._calls)

    async def _leave(self, session: Session) -> None:
        """Keep the thread if the client now has calls to run; let it go if not."""
        if self._may_be_kept(session) and self._backend.kept.enabled:
            if not self._settled:
                self._outcome_known = trio.Event()
                with trio.move_on_after(OUTCOME):
                    await self._outcome_known.wait()
            kept = self._kept(session, self._outcome)
            if kept is not None:
                await self._backend.kept.keep(kept)
                return
        await session.let_go()

    def _kept(self, session: Session, outcome: Outcome | None) -> KeptThread | None:
        """The thread as it is kept, if its client got all the calls that came in time.

        A follow-up brings the outputs of the calls that its client knows of, and gets the others.
        """
        if outcome is None:
            return None
        if outcome.cut_at < inf:
            session.place.client.problems.report("missing_response_end", "calls")
        in_time, late = list[_Made](), list[Event]()
        for made in self._calls:
            if made.call.at < outcome.cut_at or made.call.call_id in outcome.calls:
                in_time.append(made)
            else:
                late.append(made.call)
        if late:
            late += [end for end in self._ends if end.at >= late[0].at]
        if late and self._response_ends == "told":
            return None  # it was cut in the middle
        if not in_time or outcome.calls != tuple(made.call.call_id for made in in_time):
            return None
        calls = [(made.call.call_id, made.call.name, made.call.arguments) for made in in_time]
        return KeptThread(
            session=session,
            turn=self._turn,
            text="".join(self._said),
            text_before_calls="".join(self._said[: in_time[-1].said_before]),
            calls=tuple(Call(*call) for call in calls),
            response_open=self._in_response,
            late=tuple(late),
        )


class _Made(NamedTuple):
    """A call of this turn, and how many pieces of text came before it."""

    call: ToolCall
    said_before: int


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
