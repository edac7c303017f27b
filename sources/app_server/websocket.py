"""An app-server behind a WebSocket: `ws://`, `wss://`, or `unix://` for a socket file."""

from __future__ import annotations

from typing import Final

import trio
import trio_websocket
from trio_websocket import ConnectionClosed, WebSocketConnection

from sources.app_server.framing import LONGEST_LINE
from sources.app_server.transport import TransportClosedError

GRACE: Final = 2.0


class WebSocketTransport:
    """One connection; a message is a text frame."""

    def __init__(self, connection: WebSocketConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    async def connect(
        cls, nursery: trio.Nursery, url: str, *, token: str = ""
    ) -> WebSocketTransport:
        """Connect, with a capability token where the server asks for one."""
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        try:
            if url.startswith("unix://"):
                stream = await trio.open_unix_socket(url.removeprefix("unix://"))
                connection = await trio_websocket.wrap_client_stream(
                    nursery,
                    stream,
                    "localhost",
                    "/",
                    extra_headers=headers,
                    max_message_size=LONGEST_LINE,
                )
            else:
                connection = await trio_websocket.connect_websocket_url(
                    nursery, url, extra_headers=headers, max_message_size=LONGEST_LINE
                )
        except (OSError, trio_websocket.HandshakeError, trio_websocket.ConnectionClosed) as error:
            raise TransportClosedError(f"cannot connect to {url}: {_reason(error)}") from error
        return cls(connection, url)

    async def send(self, message: bytes) -> None:
        try:
            await self._connection.send_message(message.decode())
        except ConnectionClosed as error:
            raise TransportClosedError(f"{self._url} {_reason(error)}") from error

    async def receive(self) -> list[bytes]:
        try:
            first = await self._connection.get_message()
        except ConnectionClosed as error:
            raise TransportClosedError(f"{self._url} {_reason(error)}") from error
        return [first.encode() if isinstance(first, str) else first]

    def memory(self) -> int | None:
        return None

    async def aclose(self) -> None:
        with trio.move_on_after(GRACE, shield=True):
            await self._connection.aclose()


def _reason(error: BaseException) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected):
        return f"was refused with HTTP {error.status_code}"
    if isinstance(error, ConnectionClosed):
        return "closed the connection"
    return str(error) or type(error).__name__
