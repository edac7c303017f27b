"""The server side of a WebSocket with almost no CPU cost."""

from __future__ import annotations

import socket
from typing import Final

from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

AT_ONCE: Final = 65_536
_TEXT: Final = 0x81
_SHORT, _LONG = 126, 65_536


class Socket:
    """A client's WebSocket. Input is parsed with wsproto, output is framed by hand.

    A server's frames have a length and no mask, so framing is trivial.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._spoken = WSConnection(ConnectionType.SERVER)
        self._parts: list[str] = []
        self.output = accepted.fileno()

    def fileno(self) -> int:
        return self.output

    def read(self) -> list[bytes] | None:
        """The available messages; None if the client is gone."""
        data = self._socket.recv(AT_ONCE)
        if not data:
            self._socket.close()
            return None
        self._spoken.receive_data(data)
        messages: list[bytes] = []
        for event in self._spoken.events():
            match event:
                case Request():
                    self._socket.sendall(self._spoken.send(AcceptConnection()))
                    self._socket.setblocking(False)
                case TextMessage():
                    self._parts.append(event.data)
                    if event.message_finished:
                        messages.append("".join(self._parts).encode())
                        self._parts.clear()
                case Ping():
                    self._socket.sendall(self._spoken.send(event.response()))
                case CloseConnection():
                    self._socket.close()
                    return None
                case _:
                    continue
        return messages

    def framed(self, line: bytes) -> bytes:
        size = len(line)
        if size < _SHORT:
            return bytes((_TEXT, size)) + line
        if size < _LONG:
            return bytes((_TEXT, 126)) + size.to_bytes(2, "big") + line
        return bytes((_TEXT, 127)) + size.to_bytes(8, "big") + line
