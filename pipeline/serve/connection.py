"""One request on the ASGI side: what quart-trio and hypercorn need to work together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import trio
from quart import Request
from quart.utils import encode_headers
from quart.wrappers.response import DataBody
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioBody, TrioRequest

from pipeline.serve.exchange import Exchange
from pipeline.serve.incoming import Incoming, Write
from pipeline.serve.moments import Moment
from pipeline.serve.streaming import StreamedResponse

if TYPE_CHECKING:
    from pipeline.serve.app import Server

Message = Any
Send = Callable[[Message], Awaitable[None]]


class Connection(TrioASGIHTTPConnection):
    """Serves one request in one nursery, which a client that leaves takes with it.

    `scope` carries the exchange to the handlers, and the exchange the nursery.
    """

    app: Server
    _exchange: Exchange
    _write_piece: Write

    async def __call__(self, receive: Any, send: Any) -> None:  # an Incoming, from our listener
        self._write_piece = receive.write_piece
        wished = dict(self.scope["headers"]).get(b"x-request-id", b"").decode("latin1")
        exchange = self._exchange = Exchange.of(
            self.scope["method"], self.scope["path"], wished or None
        )
        scope: Any = self.scope
        scope["exchange"] = exchange
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        last = _LastHeldBack(send, exchange)
        try:
            await self._serve(receive, last.send)
            await last.release()
        finally:
            exchange.client_left = not last.released
            self.app.finish(exchange)

    async def _serve(self, receive: Incoming, send: Any) -> None:
        """Answer in the request's nursery, which the client's leaving cancels."""
        request = self._create_request_from_scope(send)
        async with trio.open_nursery() as nursery:
            self._exchange.nursery = nursery
            receive.listen(partial(_hear, request, nursery))
            await self.handle_request(nursery, request, send)

    async def _send_response(self, send: Any, response: Any) -> None:
        streamed = isinstance(response, StreamedResponse)
        if not streamed and not isinstance(response.response, DataBody):
            await super()._send_response(send, response)
            return
        headers = encode_headers(response.headers)
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": headers})
        rest = b""
        if isinstance(response, StreamedResponse):
            await response.outlet.pour(self._write_piece)
        else:
            rest = response.response.data
        await send({"type": "http.response.body", "body": rest, "more_body": False})


def _hear(request: Request, nursery: trio.Nursery, message: Message) -> None:
    """What quart does with what the client sends."""
    if message["type"] == "http.disconnect":
        nursery.cancel_scope.cancel()
        return
    request.body.append(message["body"])
    if not message["more_body"]:
        request.body.set_complete()


class _Body(TrioBody):
    """What has come of a body and was not read yet. No more than the largest body is kept.

    Its declared length is not looked at: who is refused must be read on for a while all the same.
    """

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(None, max_content_length)
        self._complete: Any = Moment()
        self._has_data: Any = Moment()


class BoundedRequest(TrioRequest):
    """A request whose body is kept within bounds, read or not."""

    body_class = _Body
    lock_class: Any = object  # for forms, and nobody sends any


class _LastHeldBack:
    """Passes on what is sent, but the very last message only when asked to.

    On it hypercorn ends the request and readies the connection for the next one; sent from inside
    quart-trio's nursery, that work would be cancelled half way, and the connection never closed.
    """

    def __init__(self, send: Send, exchange: Exchange) -> None:
        self._send = send
        self._exchange = exchange
        self._last: Message = None
        self.released = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._exchange.status = message["status"]
        elif message["body"] and not self._exchange.first_byte:
            self._exchange.first_byte = trio.current_time()
        if message.get("more_body", True):
            await self._send(message)
        else:
            self._last = message

    async def release(self) -> None:
        if self._last is not None:
            await self._send(self._last)
            self.released = True
