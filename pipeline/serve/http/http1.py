"""HTTP/1.1 by hypercorn, with errors in JSON and chunks that are framed here."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import h11
import msgspec
from hypercorn.protocol.h11 import H11Protocol

from pipeline.errors import Failure
from pipeline.serve.http.interface import Write
from pipeline.serve.http.strict import StrictConnection

_REASONS: Final = {
    431: "the head of the request is too large; send shorter headers",
    501: "this transfer-encoding is not understood; send chunked, or a content-length",
}
INVALID: Final = "the request is not valid HTTP"


class Http1(H11Protocol):
    """HTTP/1.1 only, with JSON errors for invalid requests.

    Hypercorn would upgrade to HTTP/2, where the server misses that a client leaves.
    """

    connection: Any  # that of a WebSocket has only a part of h11's methods

    def __init__(self, write: Write, *parts: Any) -> None:
        super().__init__(*parts)
        self.connection = StrictConnection(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )
        self._write = write
        self.refused = False
        """Whether the client was sent an error instead of a response."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def write_piece(self, data: bytes) -> None:
        """Send a piece of a body of unknown length, whose head was sent.

        Framed here: the way through hypercorn and h11 costs a third of the write.
        """
        if data:  # an empty chunk is the end of a body
            chunked = self.connection.their_http_version >= b"1.1"
            await self._write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)

    async def _create_stream(self, request: h11.Request) -> None:
        """Start a WebSocket where one is served.

        Other upgrades go to the app, which refuses them in JSON.
        """
        upgrades = any(name == b"upgrade" for name, _ in request.headers)
        if upgrades and not self._is_websocket(request):
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=[(name, value) for name, value in request.headers if name != b"connection"],
                http_version=request.http_version,
            )
        await super()._create_stream(request)

    def _is_websocket(self, request: h11.Request) -> bool:
        headers = dict(request.headers)
        path = request.target.partition(b"?")[0]
        config: Any = self.config
        return (
            path.decode("latin1") in config.websocket_paths
            and request.method == b"GET"
            and headers.get(b"upgrade", b"").lower() == b"websocket"
            and b"upgrade" in headers.get(b"connection", b"").lower()
            and headers.get(b"sec-websocket-version") == b"13"
            and bool(headers.get(b"sec-websocket-key"))
        )

    async def _send_error_response(self, status_code: int) -> None:
        message = self.connection.refusal or _REASONS.get(status_code, INVALID)
        failure = Failure(message, status_code, "invalid_request_error", "invalid_request_error")
        body = msgspec.json.encode(failure.body())
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("x-request-id", f"req_{uuid4().hex}"),
            ("connection", "close"),
        ]
        self.refused = True
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
