"""One request on the ASGI side: what quart-trio and hypercorn need to work together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
import trio
from quart.utils import encode_headers
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioBody, TrioRequest

from pipeline.serve.exchange import Exchange
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

    async def __call__(self, receive: Any, send: Any) -> None:
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
            await super().__call__(receive, last.send)
            await last.release()
        finally:
            exchange.client_left = not last.released
            self.app.finish(exchange)

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: Any
    ) -> None:
        self._exchange.nursery = nursery
        await super().handle_request(nursery, request, send)

    async def _send_response(self, send: Any, response: Any) -> None:
        if not isinstance(response, StreamedResponse):
            await super()._send_response(send, response)
            return
        headers = encode_headers(response.headers)
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await response.outlet.pour(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body(TrioBody):
    """What has come of a body and was not read yet. No more than the largest body is kept.

    Its declared length is not looked at: who is refused must be read on for a while all the same.
    """

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(None, max_content_length)


class BoundedRequest(TrioRequest):
    """A request whose body is kept within bounds, read or not."""

    body_class = _Body


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
        elif not message.get("more_body", False):
            self._last = message
            return
        elif not self._exchange.first_byte and message["body"]:
            self._exchange.first_byte = trio.current_time()
        await self._send(message)

    async def release(self) -> None:
        if self._last is not None:
            await self._send(self._last)
            self.released = True
