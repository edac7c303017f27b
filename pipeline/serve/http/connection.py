"""One request: passes it to the app, and cancels it when the client leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import structlog
import trio
from quart import Request, Response
from quart.utils import encode_headers
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioBody, TrioRequest

from pipeline.serve.http.incoming import Incoming
from pipeline.serve.http.interface import Finishing, Message, Write
from pipeline.serve.observe.exchange import Exchange

Send = Callable[[Message], Awaitable[None]]
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Connection(TrioASGIHTTPConnection):
    """Serves one request in one nursery, which is cancelled when the client leaves.

    `scope` carries the exchange to the handlers, and the exchange the nursery.
    """

    _exchange: Exchange
    _write_piece: Write
    _complete = False
    """Whether the client has been sent the whole response."""

    async def __call__(self, receive: Any, send: Any) -> None:  # an Incoming, from our listener
        self._write_piece = receive.write_piece
        request_id = dict(self.scope["headers"]).get(b"x-request-id", b"").decode("latin1")
        exchange = self._exchange = Exchange.of(
            self.scope["method"], self.scope["path"], request_id or None
        )
        scope: Any = self.scope
        scope["exchange"] = exchange
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        last = _LastHeldBack(send, exchange)
        try:
            await self._serve(receive, last.send)
            if self._complete:
                await last.release()
        finally:
            exchange.client_left = not last.released
            cast(Finishing, self.app).finish(exchange)

    async def _serve(self, receive: Incoming, send: Any) -> None:
        """Serve the request in its nursery."""
        request = self._create_request_from_scope(send)
        async with trio.open_nursery() as nursery:
            receive.listen(partial(_hear, request, nursery))
            await self._answer(request, send)

    async def _answer(self, request: Request, send: Any) -> None:
        """Send the response while what it is made of is open; a refusal when that is closed."""
        exchange, refusal = self._exchange, None
        try:
            async with exchange.stack:
                response = await self.app.handle_request(request)
                if exchange.failure is None:
                    await self._send_response(send, response)
                    if exchange.failure is None:
                        exchange.sent()
                else:
                    refusal = response
        except Exception as error:
            if self._complete or refusal is not None:
                _log.exception("a request broke when its answer was complete")
                exchange.failure = exchange.failure or exchange.bug()
            elif exchange.status:
                exchange.failure = exchange.bug()
                raise
            else:  # a task of its source broke, and took the handler along
                refusal = await self._refusal(request, error)
        if refusal is not None:
            await self._send_response(send, refusal)

    async def _refusal(self, request: Request, error: Exception) -> Any:
        app = self.app
        async with app.request_context(request):
            answer = await app.handle_user_exception(error)
            return await app.finalize_request(answer, from_error_handler=True)

    async def _send_response(self, send: Any, response: Any) -> None:
        if isinstance(response, StreamedResponse):
            head = {"status": response.status_code, "headers": encode_headers(response.headers)}
            await send({"type": "http.response.start", **head})
            await response.write_all(self._write_piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await super()._send_response(send, response)
        await trio.lowlevel.checkpoint_if_cancelled()  # a client that left has not got all of it
        self._complete = True


class StreamedResponse(Response):
    """A response whose body is written by a function, in the task of the request."""

    def __init__(
        self, write_all: Callable[[Write], Awaitable[None]], headers: dict[str, str]
    ) -> None:
        super().__init__(b"", headers=headers)  # pyright: ignore[reportUnknownMemberType]
        self.headers.remove("Content-Length")
        self.write_all = write_all


def _hear(request: Request, nursery: trio.Nursery, message: Message) -> None:
    """Handle a message from the client as quart does."""
    if message["type"] == "http.disconnect":
        nursery.cancel_scope.cancel()
        return
    request.body.append(message["body"])
    if not message["more_body"]:
        request.body.set_complete()


class _Body(TrioBody):
    """The part of a body that the app has not read yet, up to the size limit.

    The declared length is ignored: a body that is too large must still be read for a while.
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
