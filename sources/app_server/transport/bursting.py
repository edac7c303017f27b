"""A WebSocket connection that returns all messages of one read at once."""

from __future__ import annotations

from typing import Any, Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, TextMessage

READ_SIZE: Final = 65_536


class BurstingConnection(WebSocketConnection):
    """trio-websocket's connection without its queue of single messages.

    That queue costs a checkpoint and a task switch for each message, more than everything else.
    Here the reader does not wait for the consumer: it appends to a list and reads on.

    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        host: str,
        path: str,
        headers: list[tuple[bytes, bytes]],
        longest: int,
    ) -> None:
        super().__init__(
            stream,
            WSConnection(ConnectionType.CLIENT),
            host=host,
            path=path,
            client_extra_headers=headers,
            max_message_size=longest,
            receive_buffer_size=READ_SIZE,
        )
        self._arrived: list[bytes] = []
        self._news = trio.Event()
        self._over = False

    async def open(self, nursery: trio.Nursery) -> None:
        """Do the handshake and keep reading. Raises HandshakeError if the handshake fails."""
        nursery.start_soon(self._reader_task)
        await self._open_handshake.wait()

    async def take(self) -> list[bytes]:
        """All messages that have arrived, at least one. Raises ConnectionClosed at the end."""
        while not self._arrived:
            if self._over:
                raise ConnectionClosed(self.closed)
            self._news = trio.Event()
            await self._news.wait()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _reader_task(self) -> None:
        try:
            await super()._reader_task()
        finally:
            self._over = True
            self._news.set()

    async def _handle_message_event(self, event: BytesMessage | TextMessage) -> None:
        too_long = self._message_size + len(event.data) > self._max_message_size
        if too_long or not event.message_finished:
            await super()._handle_message_event(event)
            return
        parts: list[Any] = [*self._message_parts, event.data]
        self._message_parts, self._message_size = [], 0
        if isinstance(event, TextMessage):
            self._arrived.append("".join(parts).encode())
        else:
            self._arrived.append(b"".join(parts))
        self._news.set()
