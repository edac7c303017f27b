"""HTTP/1.1 by hypercorn, with errors in JSON and chunks that are framed here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import h11
import msgspec
from hypercorn.protocol.events import Body, StreamClosed

from pipeline.errors import Failure
from pipeline.serve.http.incoming import Requests
from pipeline.serve.http.interface import Write

_REASONS: Final = {
    431: "the head of the request is too large; send shorter headers",
    501: "this transfer-encoding is not understood; send chunked, or a content-length",
}

if TYPE_CHECKING:  # their annotations are half unknown

    class H11Protocol:
        """Hypercorn's reading and writing of HTTP/1.1."""

        config: Any
        connection: Any
        can_read: Any
        task_group: Any

        def __init__(self, *parts: Any) -> None: ...
        async def stream_send(self, event: Any) -> None: ...
        async def _send_h11_event(self, event: Any) -> None: ...
        async def _create_stream(self, request: h11.Request) -> None: ...

else:
    H11Protocol = import_module("hypercorn.protocol.h11").H11Protocol


class Http1(H11Protocol):
    """HTTP/1.1 only, with JSON errors for invalid requests.

    Hypercorn would upgrade to HTTP/2, where the server misses that a client leaves.
    """

    def __init__(self, write: Write, *parts: Any) -> None:
        super().__init__(*parts)
        self.task_group = Requests(self.task_group, self.write_piece)
        self._write_raw = write
        self._head = b""
        """The head of a response until its body starts: both are sent in one write."""
        self._in_chunks = False
        """Whether the body of the response is sent in chunks."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def stream_send(self, event: Any) -> None:
        if isinstance(event, Body):
            await self.write_piece(event.data)
            return
        if isinstance(event, StreamClosed):
            await self._write(b"")  # the head alone, where the body broke before it began
        await super().stream_send(event)

    async def write_piece(self, data: bytes) -> None:
        """Send a piece of a body whose head was sent.

        A chunk is framed here: h11 takes as long for it as the write.
        """
        if not data:
            return  # an empty chunk is the end of a body
        if self._in_chunks and self.connection.our_state is h11.SEND_BODY:
            await self._write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            await self._send_h11_event(h11.Data(data=data))

    async def _write(self, data: bytes) -> None:
        """Write the head, if it was not sent yet, and the data."""
        head, self._head = self._head, b""
        if head or data:
            await self._write_raw(head + data if head else data)

    async def _send_h11_event(self, event: Any) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return  # a client that does not speak HTTP has got an error response
        if isinstance(event, h11.Response):
            self._head = data
            self._in_chunks = b"\r\ntransfer-encoding: chunked\r\n" in data.lower()
        else:
            await self._write(data)

    async def _create_stream(self, request: h11.Request) -> None:
        """Start a WebSocket where one is served.

        Other upgrades go to the app, which refuses them in JSON.
        """
        upgrades = any(name == b"upgrade" for name, _ in request.headers)
        if not upgrades or self._is_websocket(request):
            await super()._create_stream(request)
            return
        kept = [(name, value) for name, value in request.headers if name != b"connection"]
        plain = h11.Request(
            method=request.method,
            target=request.target,
            headers=kept,
            http_version=request.http_version,
        )
        await super()._create_stream(plain)

    def _is_websocket(self, request: h11.Request) -> bool:
        headers = dict(request.headers)
        path = request.target.partition(b"?")[0]
        return (
            path.decode("latin1") in self.config.websocket_paths
            and request.method == b"GET"
            and headers.get(b"upgrade", b"").lower() == b"websocket"
            and b"upgrade" in headers.get(b"connection", b"").lower()
            and headers.get(b"sec-websocket-version") == b"13"
            and bool(headers.get(b"sec-websocket-key"))
        )

    async def _send_error_response(self, status_code: int) -> None:
        message = _REASONS.get(status_code, "the request is not valid HTTP")
        failure = Failure(message, status_code, "invalid_request_error", "invalid_request_error")
        body = msgspec.json.encode(failure.body())
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("x-request-id", f"req_{uuid4().hex}"),
            ("connection", "close"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
