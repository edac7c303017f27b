"""The Responses API on a WebSocket, as Codex speaks it: one JSON request a message, events back."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final

import msgspec
import structlog
import trio
from attrs import evolve

from pipeline import config
from pipeline.errors import Failure, ProxyError, refusal
from pipeline.loose_json import Json, as_json, is_json
from pipeline.requests.responses import ResponsesRequest
from pipeline.serve.body import MIB, parse, too_large
from pipeline.serve.memory.remembered import Memory
from pipeline.serve.memory.stored_response import StoredResponse
from pipeline.serve.observe.exchange import Exchange, client_ids
from pipeline.serve.respond import Stream, admit, open_turns, output_mode_from, without_effect
from pipeline.serve.routes.prepared import compacting, prepare
from pipeline.serve.server import Server
from pipeline.turn import OutputMode, Turn
from sinks.responses import ResponsesMessages

PATH: Final = "/v1/responses"
MOST_WAITING: Final = 16
MOST_KEPT: Final = 64 * MIB
MOST_LINKS: Final = 10_000
GOING_AWAY: Final = 1001
POLICY: Final = 1008
NO_OBJECT: Final = Failure(
    "the message is no object; send a response.create with a request in it",
    status=400,
    type="invalid_request_error",
    code="invalid_request_error",
)
_encode: Final = msgspec.json.Encoder().encode
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ResponsesSocket:
    """One client: many requests, one after the other; when it leaves, what runs is cancelled.

    A request may build on the one before although neither is stored: the connection remembers.
    """

    def __init__(self, app: Server, scope: Any) -> None:
        self._server = app
        self._headers = {
            name.decode("latin1").lower(): value.decode("latin1")
            for name, value in scope["headers"]
        }
        self._caller = ""
        self._mode: OutputMode | None = None
        self._waiting: deque[str] = deque()
        self._news = trio.Event()
        self._kept: dict[str, StoredResponse] = {}
        self._kept_bytes = 0

    async def __call__(self, receive: Any, send: Any) -> None:
        await receive()  # the handshake
        try:
            self._let_in()
        except ProxyError as error:
            await self._refuse(send, error.failure)
            return
        await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, receive, send, nursery.cancel_scope)
            nursery.start_soon(self._watch_for_the_end)
            await self._serve(send)
            nursery.cancel_scope.cancel()

    def _let_in(self) -> None:
        server, headers = self._server, self._headers
        if not len(server.keys):
            server.origins.check(headers.get("origin"), headers.get("host", ""))
        self._caller = server.keys.caller(headers.get("authorization"))
        self._mode = output_mode_from(headers.get("x-proxy-output-mode", ""))

    async def _refuse(self, send: Any, failure: Failure) -> None:
        exchange = Exchange.of("GET", PATH, self._headers.get("x-request-id"))
        exchange.status, exchange.failure, exchange.route = failure.status, failure, PATH
        exchange.facts |= client_ids(self._headers.get)
        body = _encode(failure.body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", exchange.request_id.encode()),
        ]
        start = "websocket.http.response.start"
        await send({"type": start, "status": failure.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
        self._server.finish(exchange)

    # -- listening -------------------------------------------------------------------------------

    async def _listen(self, receive: Any, send: Any, everything: trio.CancelScope) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                everything.cancel()
                return
            if len(self._waiting) >= MOST_WAITING or self._waiting_bytes() > MOST_KEPT:
                reason = "too many requests at once; send one after the other"
                await send({"type": "websocket.close", "code": POLICY, "reason": reason})
                everything.cancel()
                return
            text = message.get("text")
            raw: bytes = message.get("bytes") or b""
            self._waiting.append(text if text is not None else raw.decode("utf-8", "replace"))
            self._news.set()

    def _waiting_bytes(self) -> int:
        return sum(map(len, self._waiting))

    async def _watch_for_the_end(self) -> None:
        await self._server.stopping.wait()
        self._news.set()

    async def _serve(self, send: Any) -> None:
        """Answer what comes, until the server stops: codex opens a new socket without ado."""
        while True:
            if self._waiting:
                await self._answer(self._waiting.popleft(), send)
            elif self._server.stopping.is_set():
                reason = "the server is shutting down"
                await send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})
                return
            else:
                self._news = trio.Event()
                await self._news.wait()

    # -- one request -----------------------------------------------------------------------------

    async def _answer(self, text: str, send: Any) -> None:
        exchange = Exchange.of("WS", PATH, None)
        exchange.caller, exchange.route, exchange.status = self._caller, PATH, 200
        exchange.client_left = True
        exchange.facts |= client_ids(self._headers.get)
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        writer = Writer(send, exchange)
        try:
            async with exchange.stack:
                await self._make(text, exchange, writer)
                exchange.client_left = False
        except ProxyError as error:
            await self._fail(error.failure, exchange, writer)
        except Exception:  # noqa: BLE001  # a bug must not take the connection along
            _log.exception("a request on a WebSocket broke")
            await self._fail(exchange.bug(), exchange, writer)
        finally:
            self._server.finish(exchange)

    async def _fail(self, failure: Failure, exchange: Exchange, writer: Writer) -> None:
        exchange.failure, exchange.client_left = failure, False
        exchange.status = failure.status
        if failure.code == "previous_response_not_found":
            failure = evolve(failure, status=400)  # the one that makes codex send everything again
        await writer.fail(failure)

    async def _make(self, text: str, exchange: Exchange, writer: Writer) -> None:
        body = self._read(text)
        # Codex says it here too, and one socket may serve several of its sessions.
        exchange.facts |= client_ids(as_json(body.get("client_metadata")).get)
        memory = self._server.memory(self._caller, self._kept)
        generate = body.get("generate", True)
        if not isinstance(generate, bool):
            raise refusal("generate", "must be true or false")
        if not generate:
            await self._prepare(body, exchange, memory, writer)
            return
        request = ResponsesRequest.from_json(_request(body))
        if request.background:
            raise refusal("background", "cannot be had on a WebSocket; poll over HTTP")
        without_effect(self._server, request, self._headers.get("x-proxy-strict", ""))
        prepared = await prepare(self._server, request, memory, self._mode)
        await admit(self._server, exchange, evolve(prepared.turn, stream=True))
        exchange.stack.enter_context(self._server.metrics.streams.track_inprogress())
        messages = ResponsesMessages(prepared.options)
        answer = exchange.answer = messages.answer
        sink = compacting(self._server, exchange, prepared, messages)
        chain = await open_turns(self._server, exchange, prepared.turn)
        store = partial(prepared.store, answer)
        writer.stream = Stream(self._server.options, exchange, chain, sink, before_end=store)
        await writer.stream.write_on(writer.write)
        self._keep(memory.stored(prepared.request, answer.response, answer.withheld))

    def _read(self, text: str) -> Json:
        limit = int(self._server.options.body_limit_mb * MIB)
        data = text.encode("utf-8", "replace")
        if len(data) > limit:
            raise too_large(limit)
        body = parse(data)
        if not is_json(body):
            raise ProxyError(NO_OBJECT)
        if body.get("type") != "response.create":
            raise refusal("type", "must be response.create")
        if self._server.options.log_content:
            _log.info("request content", body=body)
        return body

    async def _prepare(
        self, body: Json, exchange: Exchange, memory: Memory, writer: Writer
    ) -> None:
        """Take in what later requests build on; nothing is generated."""
        request = ResponsesRequest.from_json(_request(body), partial=True)
        exchange.model, exchange.stream = request.model, True
        options = config.responses_options(
            self._server.options, Turn(model=request.model), request.echo()
        )
        sink = ResponsesMessages(options)
        await writer.write(sink.whole([]))
        self._keep(memory.stored(request, sink.answer.response))

    def _keep(self, stored: StoredResponse) -> None:
        # Of a response that only this socket remembers, what was said is all that matters.
        said = {name: stored.response.get(name) for name in ("id", "status", "output")}
        stored = evolve(stored, response=said)
        size = len(_encode(stored.items))
        self._kept_bytes += size
        if self._kept_bytes > MOST_KEPT or len(self._kept) >= MOST_LINKS:
            # A client that builds on what is forgotten must send everything again.
            self._kept.clear()
            self._kept_bytes = size
        self._kept[stored.response_id] = stored


def _request(body: Json) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in {"type", "generate"}}


class Writer:
    """Sends an answer as messages: each line of what a sink encodes is one."""

    def __init__(self, send: Any, exchange: Exchange) -> None:
        self._send = send
        self._exchange = exchange
        self.stream: Stream | None = None

    async def write(self, data: bytes) -> None:
        if (self.stream is None or not self.stream.begun) and not self._exchange.first_byte:
            self._exchange.first_byte = trio.current_time()
        # The messages are numbered, so none may be missing: a client that does not read them is
        # disconnected after the write timeout.
        with trio.CancelScope(shield=True):
            for line in data.splitlines():
                await self._send({"type": "websocket.send", "text": line.decode(), "bytes": None})
            if self.stream is not None and self.stream.finished:
                # That a client has left is read in one task and heard of in another.
                for _ in range(2):
                    await trio.lowlevel.cancel_shielded_checkpoint()

    async def fail(self, failure: Failure) -> None:
        """End a request: within its stream if it has one, else with a message of its own."""
        if self.stream is not None and self.stream.begun:
            await self.stream.fail(failure, self.write)
            return
        # Codex heeds an error only when it comes with a status.
        await self.write(_encode({"type": "error", "status": failure.status, **failure.body()}))
