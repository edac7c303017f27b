"""An app-server behind a WebSocket: `ws://`, `wss://`, or `unix://` for a socket file."""

from __future__ import annotations

import ssl
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import trio
import trio_websocket
from trio_websocket import ConnectionClosed

from pipeline.errors import only_member
from sources.app_server.transport.bursting import BurstingConnection
from sources.app_server.transport.framing import LONGEST_LINE
from sources.app_server.transport.transport import TransportClosedError

GRACE: Final = 0.25
"""Seconds for the closing handshake, which Codex does not answer."""
_BROKEN: Final = (
    OSError,
    trio_websocket.HandshakeError,
    trio_websocket.ConnectionClosed,
    TransportClosedError,
    ExceptionGroup,
)
Wire: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class WebSocketTransport:
    """One connection; a message is a text frame."""

    def __init__(self, connection: BurstingConnection, stream: Wire, name: str) -> None:
        self._connection = connection
        self._stream = stream
        self._name = name

    @classmethod
    async def connect(
        cls, nursery: trio.Nursery, url: str, *, token: str = "", name: str = ""
    ) -> WebSocketTransport:
        """Connect, with a capability token if the server requires one.

        Errors show `name` in place of the address, if given.
        """
        try:
            transport: WebSocketTransport = await nursery.start(cls._host, url, token, name or url)
        except _BROKEN as error:
            reason = only_member(error) if isinstance(error, BaseExceptionGroup) else error
            raise TransportClosedError(
                f"cannot connect to {name or url}: {_reason(reason)}"
            ) from error
        return transport

    @classmethod
    async def _host(
        cls, url: str, token: str, name: str, task_status: trio.TaskStatus[WebSocketTransport]
    ) -> None:
        """Run the connection. An error in its reader must not cancel the nursery."""
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        connected = False
        stream, host, resource = await _open(url)
        try:
            async with trio.open_nursery() as nursery:
                connection = BurstingConnection(stream, host, resource, headers, LONGEST_LINE)
                await connection.open(nursery)
                connected = True
                task_status.started(cls(connection, stream, name))
        except _BROKEN:
            if not connected:  # afterwards `receive` raises it
                raise
        finally:
            await trio.aclose_forcefully(stream)

    def send_now(self, message: bytes) -> bool:
        return False

    async def send(self, message: bytes) -> None:
        try:
            await self._connection.send_message(message.decode())
        except ConnectionClosed as error:
            raise TransportClosedError(f"{self._name} {_reason(error)}") from error

    async def receive(self) -> list[bytes]:
        try:
            return await self._connection.take()
        except ConnectionClosed as error:
            raise TransportClosedError(f"{self._name} {_reason(error)}") from error

    def memory(self) -> int | None:
        return None

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(GRACE):
                await self._connection.aclose()
            await trio.aclose_forcefully(self._stream)  # the peer may not answer the close


async def _open(url: str) -> tuple[Wire, str, str]:
    """The stream to an address, with the host and the resource for the handshake."""
    if url.startswith("unix://"):
        return await trio.open_unix_socket(url.removeprefix("unix://")), "localhost", "/"
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    resource = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    if secure:
        return await _open_tls(host, port), parts.netloc, resource
    return await trio.open_tcp_stream(host, port), parts.netloc, resource


async def _open_tls(host: str, port: int) -> Wire:
    """A TLS stream with a verified certificate."""
    stream = await trio.open_ssl_over_tcp_stream(host, port)
    try:
        await stream.do_handshake()  # now, so that its errors are known as such
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise TransportClosedError(_tls_problem(error.__cause__)) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


def _tls_problem(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); name the file of the "
            "authority that signed it in SSL_CERT_FILE"
        )
    return "it does not speak TLS; is it a ws:// address?"


def _reason(error: BaseException) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected):
        return f"was refused with HTTP {error.status_code}"
    if isinstance(error, ConnectionClosed):
        return "closed the connection"
    return str(error) or type(error).__name__
