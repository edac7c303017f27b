"""A turn on a live app-server as a source of events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import trio

from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Failed, RetryNotice, TextDelta, ToolCall, TurnEnd
from pipeline.stage import Send
from pipeline.turn import Turn
from sources.app_server.client import BackendGoneError, BackendSilentError
from sources.app_server.held import HeldTurn
from sources.app_server.images import check_images
from sources.app_server.mailbox import Delivery, MailboxClosedError, TakeAtOnce
from sources.app_server.place import Backend, Bounds
from sources.app_server.reading import TurnReader, is_brief_text
from sources.app_server.record import Recorder
from sources.app_server.rpc import RpcError
from sources.app_server.sendable import check_sendable
from sources.app_server.session import Session
from sources.app_server.thread import ThreadPlan
from sources.decode.turn_decoder import TurnDecoder, Watcher

OUTPUTS_MISSING: Final = 1.0
"""How long a turn that waits for tool outputs is listened to, where nothing cuts it before."""
VERDICT: Final = 5.0
"""How long the end of a run may take to be known."""


class AppServerTurn:
    """Runs one Turn: thread, history, turn, events; and lets everything go at the end.

    Where the client was given calls, the turn is held for its follow-up instead, if the backend
    can; and a Turn that follows up on a held one continues it. Clients see no difference.
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
        self._outputs: dict[str, Any] = {}
        self._turn_id = ""
        self._said: list[str] = []
        self._calls: list[tuple[str, str, str]] = []
        self._unsent: Burst = ()
        """What was read and has not been passed on yet."""
        self._started = self._heard = 0.0
        self._spoke = False
        """Whether the backend has said anything yet."""
        self._delivered: Sequence[str] | None = None
        self._verdict: trio.Event | None = None
        self._settled = False

    def settle(self, calls: Sequence[str] | None) -> None:
        """Told how the run ended: which calls the client got, if it got all that it was to get."""
        self._delivered, self._settled = calls, True
        if self._verdict is not None:
            self._verdict.set()

    async def run(self, send: Send) -> None:
        try:
            check_sendable(self._turn)
            check_images(self._turn.items)
            session = await self._open()
            self._started = self._heard = trio.current_time()
            try:
                await self._play(session, send)
            finally:
                if not self._calls:  # else it may be held, which is decided when more is known
                    session.interrupt()
                if session.opened and session.alive:
                    session.place.nursery.start_soon(self._leave, session)
                else:
                    session.release()
        except ProxyError as error:
            now = trio.current_time()
            with trio.move_on_after(VERDICT):  # a client that does not read is not told
                await send.send((Failed(error.failure, at=now), TurnEnd("failed", at=now)))
        finally:
            if self._record is not None:
                self._record.close()

    # -- beginning -------------------------------------------------------------------------------

    async def _open(self) -> Session:
        """The session this turn continues, or a new one."""
        found = self._backend.held.take(self._turn)
        if found is not None:
            held, outputs = found
            held.session.skip()
            if not held.session.ended:
                self._turn_id, self._outputs = held.turn_id, outputs
                return held.session
            held.session.place.nursery.start_soon(held.session.let_go)
        return Session(await self._backend.lease())

    async def _begin(self, session: Session, plan: ThreadPlan) -> None:
        try:
            with trio.fail_after(min(self._bounds.first_event, self._bounds.total)):
                if self._outputs:
                    await session.answer(self._outputs)
                else:
                    self._turn_id = await session.start(plan)
        except trio.TooSlowError:
            raise ProxyError(_too_slow(self._bounds)) from None
        except RpcError as error:
            raise ProxyError(error.failure) from error
        except (BackendGoneError, BackendSilentError) as error:
            raise ProxyError(unavailable(str(error))) from error

    # -- playing ---------------------------------------------------------------------------------

    async def _play(self, session: Session, send: Send) -> None:
        place = session.place
        plan = ThreadPlan(
            self._turn, place.capabilities, place.workspace, sees_files=place.sees_files
        )
        await self._begin(session, plan)
        continued = session.thread if self._outputs else ""
        decoder = TurnDecoder(
            known_calls=plan.history_calls,
            raw_items=session.place.capabilities.raw_events,
            continued=(continued, self._turn_id) if continued else None,
        )
        reader = TurnReader(decoder, plan.aliases, self._record, self._watch)
        while True:
            # One scope serves many bursts: a scope for each would cost more than all the rest. So
            # it may end for a silence that was broken since, and then another one is opened.
            with trio.CancelScope(deadline=self._due(session)) as waiting:
                await self._listen(session, reader, send, waiting)
                return
            self._silent(session)

    async def _listen(
        self, session: Session, reader: TurnReader, send: Send, waiting: trio.CancelScope
    ) -> None:
        """Pass on what the backend says until the turn is over."""
        at_once = partial(self._pass_on_text, reader, send)
        while self._unsent or not session.ended:
            if not self._unsent:
                self._unsent = await self._next(session, reader, at_once)
            if self._unsent:
                await send.send(self._unsent)
                sent, self._unsent = self._unsent, ()
                if isinstance(sent[-1], TurnEnd):
                    return
                if type(sent[-1]) is TextDelta or any(type(one) is not RetryNotice for one in sent):
                    # A backend that only says it tries again has not been heard from.
                    self._heard, self._spoke = trio.current_time(), True
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
            delivery = await session.next(at_once)
            if self._outputs:
                await session.answer(self._outputs)
        except (MailboxClosedError, BackendGoneError) as error:
            raise ProxyError(unavailable(str(error))) from error
        burst = reader.read(delivery)
        session.ended = reader.ended
        self._note(burst)
        return burst

    def _due(self, session: Session) -> float:
        """When the turn has been waited for long enough."""
        end = self._started + self._bounds.total
        if self._unsent:
            return end  # it is the client that takes its time
        patience = self._bounds.idle if self._spoke else self._bounds.first_event
        if session.requests:  # it waits for outputs, which only a follow-up can bring
            patience = min(OUTPUTS_MISSING, patience)
        return min(end, self._heard + patience)

    def _silent(self, session: Session) -> None:
        """Give up, or end a turn that waits for its outputs, if it is time to."""
        now = trio.current_time()
        if now < self._due(session):
            return
        if self._unsent or not session.requests:
            raise ProxyError(_too_slow(self._bounds))
        self._unsent = (TurnEnd("tool_calls", at=now),)

    def _note(self, burst: Burst) -> None:
        """Remember what a follow-up must repeat to be one."""
        for event in burst:
            if isinstance(event, TextDelta):
                self._said.append(event.text)
            elif isinstance(event, ToolCall):
                self._calls.append((event.call_id, event.name, event.arguments))

    # -- leaving ---------------------------------------------------------------------------------

    async def _leave(self, session: Session) -> None:
        """Hold the turn if the client now has calls to run; let it go if not."""
        # A call of a tool that Codex was not given it answers itself: there is nothing to hold.
        offered = {tool.name for tool in self._turn.offered}
        given = {name for _, name, _ in self._calls} <= offered
        waits = not session.ended and given and session.place.capabilities.dynamic_tools
        if self._calls and waits and self._backend.held.enabled:
            if not self._settled:
                self._verdict = trio.Event()
                with trio.move_on_after(VERDICT):
                    await self._verdict.wait()
            # A follow-up brings the outputs of the calls that its client knows of.
            if self._delivered == [call_id for call_id, _, _ in self._calls]:
                await self._backend.held.hold(
                    HeldTurn(
                        session=session,
                        turn=self._turn,
                        turn_id=self._turn_id,
                        text="".join(self._said),
                        calls=tuple(self._calls),
                    )
                )
                return
        await session.let_go()


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
