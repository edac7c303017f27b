"""A turn on any backend that speaks the Responses API over HTTP, as a source of events."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Final, NamedTuple

import httpx
import trio
from attrs import evolve

from pipeline.errors import Failure, ProxyError, only_member
from pipeline.events import Burst, Event, Failed, TurnEnd, TurnStart
from pipeline.stage import Incoming
from pipeline.turn import Turn
from sources.decode.http_answer import HttpAnswer
from sources.decode.http_failures import http_failure, upstream_failure
from sources.decode.turn_decoder import TurnDecoder, Watcher
from sources.problems import Report, unreported
from sources.responses_request import ResponsesApi, request_body

MOST_UNREAD: Final = 64 * 1024
"""How many bytes may wait for a slow client before the backend is read no further."""
MOST_OF_AN_ERROR: Final = 64 * 1024
"""How much of the body of an error is read."""
LONGEST_LIST: Final = 4 * 1024 * 1024
"""How many bytes a list of models may have."""
AT_ONCE: Final = 0.001
"""Bytes that come within this time have one stamp."""
LAST_BYTES: Final = 0.1
"""How long the end of an answer's bytes is waited for once its last event has been told."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


def open_client() -> httpx.AsyncClient:
    """A client for many turns, which then share its connections; the bounds are the turns' own."""
    return httpx.AsyncClient(
        timeout=None,  # noqa: S113  # every wait has its bound: see ResponsesApiTurn.receive
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        mounts={f"all://{host}": None for host in LOOPBACK},  # never through a proxy
    )


class ResponsesApiSource:
    """Asks once for each turn; and however the turn is left, the request is closed, so that the
    backend stops."""

    real_time = True

    def __init__(
        self,
        api: ResponsesApi,
        client: httpx.AsyncClient | None = None,
        *,
        watch: Watcher | None = None,
        report: Report = unreported,
    ) -> None:
        """Without a client each turn opens one of its own, which costs a new connection."""
        self._api = api
        self._client = client
        self._watch = watch
        self._report = report

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        decoder = TurnDecoder(report=self._report)
        reuse = self._client is not None
        running = ResponsesApiTurn(self._api, decoder, watch=self._watch, reuse=reuse)
        client = open_client() if self._client is None else nullcontext(self._client)
        try:
            async with client as connected, trio.open_nursery() as nursery:
                nursery.start_soon(running.run, connected, turn)
                try:
                    yield running
                finally:
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


class ResponsesApiTurn(Incoming):
    """The events of one turn, decoded from the bytes that a task of its own reads.

    httpx gives out what one read of the network brought chunk by chunk. The task reads on until it
    has to wait, so that a fast stream comes in bursts. A stream that breaks off gets no end from
    here: what to make of that is the guard's business.
    """

    def __init__(
        self, api: ResponsesApi, decoder: TurnDecoder, *, watch: Watcher | None, reuse: bool
    ) -> None:
        self._api = api
        self._decoder = decoder
        self._answer = HttpAnswer(decoder, hide=api.without_key, watch=watch)
        self._unread = _Unread()
        self._reuse = reuse
        """Whether the connection is used again."""
        self._started = self._heard = trio.current_time()
        self._began = self._over = False

    async def run(self, client: httpx.AsyncClient, turn: Turn) -> None:
        """Send the request and read the answer."""
        unread = self._unread
        try:
            with unread.reading:
                await self._read(client, request_body(turn), unread)
        except ProxyError as error:
            unread.end(error.failure)
        except Exception as mistake:  # noqa: BLE001  # raised where the turn is received
            unread.mistake = mistake
            unread.end()

    # -- reading ---------------------------------------------------------------------------------

    async def _read(self, client: httpx.AsyncClient, body: bytes, unread: _Unread) -> None:
        api = self._api
        request = client.build_request("POST", api.url, content=body, headers=api.headers())
        began = False
        failure = None
        try:
            async with _sent(client, request) as response:
                if response.is_success:
                    began = True
                    unpack = _unpacker(response)
                    async with _chunks_of(response) as chunks:
                        async for chunk in chunks:
                            await unread.put(unpack(chunk))
                else:
                    failure = await self._refusal(response)
        except _PackedError as error:
            failure = upstream_failure(str(error))
        except httpx.HTTPError as error:
            unread.broken = began
            failure = None if began else self._unreachable(error)
        unread.end(failure)

    async def _refusal(self, response: httpx.Response) -> Failure:
        """The failure behind an error's status; its body is of use even if it breaks off."""
        body = b""
        with suppress(httpx.HTTPError, _PackedError):
            unpack = _unpacker(response)
            async with _chunks_of(response) as chunks:
                async for chunk in chunks:
                    body += unpack(chunk)
                    if len(body) > MOST_OF_AN_ERROR:
                        break
        shown = self._api.without_key(body.decode("utf-8", "replace"))
        return http_failure(response.status_code, response.headers, shown.encode())

    def _unreachable(self, error: httpx.HTTPError) -> Failure:
        why = f"the backend at {self._api.place} did not answer: {_root_of(error)}"
        return upstream_failure(why)

    # -- receiving -------------------------------------------------------------------------------

    async def receive(self) -> Burst:
        bounds = self._api.bounds
        while True:
            try:
                return self.receive_nowait()
            except trio.WouldBlock:
                # Any byte is a sign of life, a comment too: some backends send nothing else for a
                # while, as they wait for theirs.
                patience = bounds.idle if self._decoder.recognized else bounds.first_event
                due = min(self._unread.at + patience, self._started + bounds.total)
                with trio.move_on_at(due):
                    await self._unread.wait()
                if trio.current_time() >= due and not self._unread:
                    self.fail(_too_slow(self._api))

    def receive_nowait(self) -> Burst:
        if trio.current_time() >= self._started + self._api.bounds.total:
            self.fail(_too_slow(self._api))  # there may always be something to take
        while not self._over:
            pieces = self._unread.take_nowait()
            events: list[Event] = []
            try:
                for piece in pieces:
                    events += self._answer.feed(bytes(piece.data), piece.at)
                if not pieces:
                    events += self._last()
                self._over = self._decoder.ended or not pieces
            except ProxyError as error:
                now = trio.current_time()
                self._over = True
                events += (Failed(error.failure, at=now), TurnEnd("failed", at=now))
            if self._decoder.ended and self._reuse:
                self._unread.finish()
            if events:
                return self._burst(events)
        raise trio.EndOfChannel

    def _last(self) -> Sequence[Event]:
        """The events at the end of what was read. ProxyError if it failed."""
        unread = self._unread
        if unread.failure is not None:
            raise ProxyError(unread.failure)
        return () if unread.broken else self._answer.close(unread.at)

    def fail(self, failure: Failure) -> None:
        """What was read before is still given out; nothing more is read."""
        if not (self._over or self._unread.ended):
            self._unread.end(failure)
            self._unread.reading.cancel()

    def _burst(self, events: Sequence[Event]) -> Burst:
        burst = tuple(self._discreet(e) if isinstance(e, Failed) else e for e in events)
        if self._began or isinstance(burst[0], Failed):
            return burst
        self._began = True  # an API over HTTP always tells: its stream is the response
        return (TurnStart("told", at=burst[0].at), *burst)

    def _discreet(self, event: Failed) -> Failed:
        message = self._api.without_key(event.error.message)
        return evolve(event, error=evolve(event.error, message=message))


class _Piece(NamedTuple):
    """Bytes, and when they came."""

    data: bytearray
    at: float


class _Unread:
    """What was read from the network and not yet taken. Who puts too much in has to wait."""

    def __init__(self) -> None:
        self.at = trio.current_time()
        """When something was last heard."""
        self.broken = False
        """The answer broke off: what is left of it is not whole."""
        self.failure: Failure | None = None
        self.mistake: Exception | None = None
        """What the reading raised, to be raised where it is taken."""
        self.reading = trio.CancelScope()
        """Where the reading is done."""
        self.ended = False
        self._pieces: list[_Piece] = []
        self._bytes = 0
        self._finishing = False
        self._change = trio.lowlevel.ParkingLot()

    def __bool__(self) -> bool:
        return bool(self._pieces) or self.ended

    async def put(self, chunk: bytes) -> None:
        if self._finishing or self.ended or not chunk:
            return
        self.at = trio.current_time()
        if not self._pieces or self.at - self._pieces[-1].at >= AT_ONCE:
            self._pieces.append(_Piece(bytearray(), self.at))
        self._pieces[-1].data.extend(chunk)
        self._bytes += len(chunk)
        self._change.unpark_all()
        while self._bytes >= MOST_UNREAD:
            await self._change.park()

    def end(self, failure: Failure | None = None) -> None:
        self.failure = self.failure or failure
        self.ended = True
        self.at = trio.current_time()
        self._change.unpark_all()

    def finish(self) -> None:
        """Everything has been said: read on to the end of the bytes, though the turn is left.

        Only a connection that was read to its end is used again.
        """
        self._finishing = True
        self.reading.shield = True
        self.reading.deadline = trio.current_time() + LAST_BYTES

    async def wait(self) -> None:
        """Wait until there is something to take."""
        while not self:
            await self._change.park()

    def take_nowait(self) -> Sequence[_Piece]:
        """All that has come; nothing at the end. WouldBlock if nothing has."""
        if self.mistake is not None:
            raise self.mistake
        if not self:
            raise trio.WouldBlock
        pieces, self._pieces = self._pieces, []
        self._bytes = 0
        self._change.unpark_all()
        return pieces


@asynccontextmanager
async def _sent(
    client: httpx.AsyncClient, request: httpx.Request
) -> AsyncGenerator[httpx.Response]:
    response = await client.send(request, stream=True)
    try:
        yield response
    finally:
        await response.aclose()  # httpcore shields the closing itself


async def get_list(api: ResponsesApi, client: httpx.AsyncClient, url: str) -> bytes:
    """The body at an address beside the responses; ValueError where there is none to use."""
    headers = api.headers() | {"accept": "application/json"}
    body = bytearray()
    async with _sent(client, client.build_request("GET", url, headers=headers)) as response:
        if not response.is_success:
            raise ValueError(f"status {response.status_code}")
        async with _chunks_of(response) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > LONGEST_LIST:
                    raise ValueError(f"more than {LONGEST_LIST} bytes")
    return bytes(body)


@asynccontextmanager
async def _chunks_of(response: httpx.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The chunks of a body, and an end to all the generators that give them out.

    httpx has them nested six deep and closes only the outermost. Left in the middle, the others
    are finalised by the garbage collector, of which trio rightly complains. A closed response
    makes each of them run to its end.
    """
    chunks = response.aiter_raw()
    try:
        yield chunks
    finally:
        with trio.CancelScope(shield=True), suppress(httpx.HTTPError, httpx.StreamError):
            await response.aclose()
            async for _ in chunks:
                pass


def _root_of(error: BaseException) -> str:
    """Why it came to this, such as a certificate or a refused connection: httpx does not say."""
    why = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        inner: tuple[BaseException, ...] = getattr(cause, "exceptions", ())
        cause = inner[0] if inner else cause  # a host may have several addresses
        why = str(cause) or why
        cause = cause.__cause__ or cause.__context__
    return why


class _PackedError(Exception):
    """The body is packed in a way that we cannot unpack."""


def _unpacker(response: httpx.Response) -> Callable[[bytes], bytes]:
    """What makes plain bytes of a chunk, for a backend that packs though it was asked not to."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing == "identity":
        return bytes
    if packing not in ("gzip", "deflate"):
        raise _PackedError(f"the backend packs its answers as {packing}; it was asked not to")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either, as the first bytes tell

    def unpack(chunk: bytes) -> bytes:
        try:
            return unpacking.decompress(chunk)
        except zlib.error as error:
            raise _PackedError(f"the backend's answer is not the {packing} it says") from error

    return unpack


def _too_slow(api: ResponsesApi) -> Failure:
    bounds = api.bounds
    return Failure(
        f"the backend at {api.place} did not answer in time: nothing was heard for "
        f"{bounds.first_event:g} s at the start, {bounds.idle:g} s in the middle, or the turn took "
        f"over {bounds.total:g} s",
        status=504,
        type="server_error",
        code="timeout",
    )
