"""A turn on a live app-server as a source of events."""

from __future__ import annotations

from typing import Final

import trio
from attrs import frozen

from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, RetryNotice, TurnEnd
from pipeline.loose_json import Json
from pipeline.stage import Send
from pipeline.turn import Turn
from sources.app_server.client import BackendGoneError, BackendSilentError, Pending
from sources.app_server.mailbox import Mailbox, MailboxClosedError
from sources.app_server.place import Backend, Place
from sources.app_server.rpc import RpcError
from sources.app_server.thread import ThreadPlan, bad_text, thread_id, to_client, turn_id
from sources.decode.turn_decoder import TurnDecoder

LETTING_GO: Final = 5.0
"""How long the end of a turn may take, behind the client's back."""


@frozen
class Bounds:
    """How long a turn may be silent, and how long it may last, in seconds."""

    first_event: float = 120.0
    idle: float = 300.0
    total: float = 3600.0


class AppServerTurn:
    """Runs one Turn: thread, history, turn, events; and lets everything go at the end.

    However the turn is left, by its end, by the cutter, by the client, the backend is told to
    interrupt exactly once if the turn was still running, and its thread is deleted.
    """

    real_time = True

    def __init__(self, backend: Backend, turn: Turn, bounds: Bounds | None = None) -> None:
        self._backend = backend
        self._turn = turn
        self._bounds = bounds or Bounds()
        self._thread = ""
        self._opening: Pending | None = None
        self._starting: Pending | None = None
        self._ended = False

    async def run(self, send: Send) -> None:
        try:
            place = await self._lease()
            try:
                await self._play(place, send)
            finally:
                if self._opening is not None and place.client.gone is None:
                    place.nursery.start_soon(self._let_go, place)
        except ProxyError as error:
            await send.send(self._failure(error.failure))

    async def _lease(self) -> Place:
        turn = self._turn
        if bad_text([list(turn.items), turn.instructions, [t.name for t in turn.tools]]):
            raise ProxyError(
                Failure(
                    "the request holds half of a surrogate pair (such as \\ud800), which is no "
                    "text; send valid Unicode",
                    status=400,
                    type="invalid_request_error",
                    code="invalid_request_error",
                )
            )
        return await self._backend.lease()

    # -- playing ---------------------------------------------------------------------------------

    async def _play(self, place: Place, send: Send) -> None:
        plan = ThreadPlan(self._turn, place.capabilities, place.workspace)
        started = trio.current_time()
        try:
            mailbox = await self._start(place, plan)
        except RpcError as error:
            raise ProxyError(error.failure) from error
        except (BackendGoneError, BackendSilentError) as error:
            raise ProxyError(unavailable(str(error))) from error
        decoder = TurnDecoder(
            known_calls=plan.history_calls, raw_items=place.capabilities.raw_events
        )
        heard = started
        first = True
        while not self._ended:
            limit = heard + (self._bounds.first_event if first else self._bounds.idle)
            deadline = min(limit, started + self._bounds.total)
            burst = await self._next(mailbox, decoder, plan, deadline)
            if any(not isinstance(event, RetryNotice) for event in burst):
                # A backend that only says it tries again has not been heard from.
                heard, first = trio.current_time(), False
            self._ended = decoder.ended
            if burst:
                await send.send(burst)

    async def _start(self, place: Place, plan: ThreadPlan) -> Mailbox:
        client = place.client
        self._opening = await client.begin("thread/start", plan.thread_start())
        self._thread = thread_id(await self._opening.wait())
        mailbox = client.open_mailbox(self._thread)
        if items := plan.injected():
            params: Json = {"threadId": self._thread, "items": items}
            await client.request("thread/inject_items", params)
        self._starting = await client.begin("turn/start", plan.turn_start(self._thread))
        await self._starting.wait()
        return mailbox

    async def _next(
        self, mailbox: Mailbox, decoder: TurnDecoder, plan: ThreadPlan, deadline: float
    ) -> Burst:
        try:
            with trio.fail_at(deadline):
                delivery = await mailbox.take()
        except trio.TooSlowError:
            raise ProxyError(_too_slow(self._bounds)) from None
        except MailboxClosedError as error:
            raise ProxyError(unavailable(str(error))) from error
        events: list[Event] = []
        for letter in delivery.letters:
            events += decoder.feed(to_client(letter.message, plan.aliases), delivery.at)
        return tuple(events)

    def _failure(self, failure: Failure) -> Burst:
        now = trio.current_time()
        return (Failed(failure, at=now), TurnEnd("failed", at=now))

    # -- letting go ------------------------------------------------------------------------------

    async def _let_go(self, place: Place) -> None:
        """Interrupt the turn if it still runs, then delete its thread, within a bound."""
        client = place.client
        with trio.move_on_after(LETTING_GO, shield=True):
            try:
                if self._opening is not None and not self._thread:
                    self._thread = thread_id(await self._opening.wait(LETTING_GO))
                client.close_mailbox(self._thread)  # from here on everything is late
                if self._starting is not None and not self._ended:
                    turn = turn_id(await self._starting.wait(LETTING_GO))
                    params = {"threadId": self._thread, "turnId": turn}
                    await client.request("turn/interrupt", params, LETTING_GO)
                await self._delete(place)
            except (RpcError, BackendGoneError, BackendSilentError):
                client.counters["not let go"] += 1

    async def _delete(self, place: Place) -> None:
        """Ephemeral threads leak in the child; ones kept on disk and then deleted do not."""
        params = {"threadId": self._thread}
        if place.capabilities.delete_thread:
            await place.client.request("thread/delete", params, LETTING_GO)
        elif place.capabilities.archive_thread:
            await place.client.request("thread/archive", params, LETTING_GO)


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
