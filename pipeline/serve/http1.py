"""HTTP/1.1 as hypercorn speaks it, with errors in JSON and an end that a client gets to read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import h11
import msgspec
import trio

from pipeline.errors import Failure

LINGERING: Final = 2.0
"""How long a client that is still sending may take to read why nobody listens."""
_UNHEARD: Final = (h11.SEND_BODY, h11.ERROR)
_REASONS: Final = {
    431: "the head of the request is too large; send shorter headers",
    501: "this transfer-encoding is not understood; send chunked, or a content-length",
}

if TYPE_CHECKING:  # their annotations are half unknown

    class TCPServer:
        """Hypercorn's side of one connection."""

        protocol: Any
        idle_task: Any
        stream: trio.SocketStream

        def __init__(self, *parts: Any) -> None: ...
        async def run(self) -> None: ...
        async def _read_data(self) -> None: ...
        async def _close(self) -> None: ...

    class H11Protocol:
        """Hypercorn's reading and writing of HTTP/1.1."""

        config: Any
        connection: Any

        def __init__(self, *parts: Any) -> None: ...
        async def _send_h11_event(self, event: Any) -> None: ...
        async def _create_stream(self, request: h11.Request) -> None: ...

else:
    TCPServer = import_module("hypercorn.trio.tcp_server").TCPServer
    H11Protocol = import_module("hypercorn.protocol.h11").H11Protocol


class Http1(H11Protocol):
    """Answers what is not HTTP in the same words as everything else, and stays with HTTP/1.1.

    Hypercorn would upgrade to HTTP/2, where a client that leaves is missed in other ways; whoever
    asks for that can do without.
    """

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def _create_stream(self, request: h11.Request) -> None:
        """Let a WebSocket begin where one is spoken.

        Everything else goes to the app, which sees a wish to upgrade and refuses it in JSON.
        """
        if self._is_spoken(request):
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

    def _is_spoken(self, request: h11.Request) -> bool:
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


class TcpConnection(TCPServer):
    """One connection. Who is refused in the middle of sending hears it, and is then hung up on.

    A socket that is closed with bytes unread resets the connection, and the client loses the
    answer that it has not read yet.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._reader: trio.lowlevel.Task | None = None
        self._all_read = trio.Event()
        self._lingers = False

    async def _read_data(self) -> None:
        of = self.protocol
        of.protocol = Http1(
            of.app,
            of.config,
            of.context,
            of.task_group,
            of.state,
            of.ssl,
            of.client,
            of.server,
            of.send,
        )
        self._reader = trio.lowlevel.current_task()
        try:
            await super()._read_data()
            await self.idle_task.stop()  # it would keep a connection whose client has left
        finally:
            self._all_read.set()

    async def _close(self) -> None:
        reading = getattr(self.protocol.protocol, "connection", None)
        if not self._lingers and getattr(reading, "their_state", None) in _UNHEARD:
            self._lingers = True
            with trio.move_on_after(LINGERING):
                await self._let_it_finish()
        await super()._close()

    async def _let_it_finish(self) -> None:
        """Say that no more will come, and read on until the client has seen it."""
        try:
            await self.stream.send_eof()
            if trio.lowlevel.current_task() is not self._reader:
                await self._all_read.wait()
            while not self._all_read.is_set() and await self.stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass  # it has left
