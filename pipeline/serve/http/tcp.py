"""One TCP connection: reading, writing and closing."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from hypercorn.events import Closed, Event, RawData, Updated

from pipeline.serve.http.http1 import Http1
from pipeline.serve.http.incoming import Requests
from pipeline.serve.http.keep_alive import KeepAlive

LINGERING: Final = 2.0
"""How long a client that is still sending may take to read why it was refused."""
MOST_READ: Final = 65_536
MOST_AHEAD: Final = 4 * MOST_READ
"""How much is read of requests that are sent before an earlier response has ended."""
_STILL_SENDING: Final = (h11.SEND_BODY, h11.ERROR)
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class _Pause:
    """Replaces the event that hypercorn waits for while a request is sent too early.

    Hypercorn does not read while it waits, and so does not see the client leave.
    """

    def __init__(self, read_ahead: Callable[[], Awaitable[None]]) -> None:
        self._read_ahead = read_ahead
        self._waiting = trio.CancelScope()

    async def clear(self) -> None:
        self._waiting = trio.CancelScope()

    async def set(self) -> None:
        self._waiting.cancel()

    async def wait(self) -> None:
        """Until the response has ended. BrokenResourceError if the client has left before."""
        with self._waiting:
            await self._read_ahead()
            raise trio.BrokenResourceError("the client has left")


class TcpConnection:
    """Hypercorn's HTTP/1.1 on one socket.

    A client that is refused while it sends can still read the response: closing a socket with
    unread bytes would reset the connection.
    """

    _http: Http1

    def __init__(self, stream: trio.SocketStream, idle: KeepAlive, config: Any) -> None:
        self._stream = stream
        self._socket = stream.socket
        self._idle = idle
        self._config = config
        self._sending = trio.Lock()
        self._reading = trio.CancelScope()
        self._drops = False
        self._ahead = b""

    async def run(self, app: Any, context: Any) -> None:
        """Serve requests until either side closes the connection."""
        try:
            client, server = self._socket.getpeername()[:2], self._socket.getsockname()[:2]
            self._idle.wait(self._socket)
            requests = Requests()
            async with requests:
                around: Any = (self._config, context, requests, {}, False, client, server)
                http = self._http = Http1(self.write, app, *around, self._send)
                pause: Any = _Pause(self._read_ahead)
                http.can_read = pause
                requests.write_piece = http.write_piece
                with self._reading:
                    await self._read_to_the_end()
                await http.handle(Closed())
        finally:
            self._idle.leave(self._socket)
            self._socket.close()

    async def _send(self, event: Event) -> None:
        match event:
            case RawData():
                await self.write(event.data)
            case Updated(idle=True):
                self._idle.wait(self._socket)
            case Updated():
                self._idle.leave(self._socket)
            case _:
                self._close()
                await self._http.handle(Closed())

    # -- writing ---------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Write at once what the socket takes; wait only for the rest.

        Nearly always it takes everything, and then the lock, the shield and the checkpoint that
        waiting needs would cost several times as much as the write. A cancelled sender has either
        written nothing or everything, so no chunk is ever cut in two.
        """
        try:
            if data and not self._sending.locked():
                data = data[self._write(data) :]
            if data:
                with trio.CancelScope(shield=True):
                    await self._write_all(data)
        except _GONE:
            await self._http.handle(Closed())

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._open_file(), data)
        except BlockingIOError:
            return 0

    async def _write_all(self, data: bytes) -> None:
        """Write as the client reads; close the connection if it reads nothing for too long."""
        async with self._sending:
            while data:
                with trio.move_on_after(self._config.write_timeout) as waiting:
                    await trio.lowlevel.wait_writable(self._open_file())
                if waiting.cancelled_caught:
                    self._socket.close()
                data = data[self._write(data) :]

    def _open_file(self) -> int:
        """The socket's number; ClosedResourceError if it has none any more."""
        number = self._socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError("the connection was closed")
        return number

    # -- reading ---------------------------------------------------------------------------------

    async def _read_to_the_end(self) -> None:
        data = b"\n"
        with suppress(*_GONE):
            while data:
                data, self._ahead = self._ahead or await self._read(), b""
                if not self._drops:
                    await self._http.handle(RawData(data))

    async def _read(self) -> bytes:
        """What the client has sent; nothing after its end of file."""
        return bytes(await self._stream.receive_some(MOST_READ))

    async def _read_ahead(self) -> None:
        """Read what is sent too early, within bounds, until the client leaves."""
        with suppress(*_GONE):
            while data := await self._read():
                self._ahead += data
                if len(self._ahead) > MOST_AHEAD:  # it has to wait, and is noticed when written to
                    await trio.sleep_forever()

    def _close(self) -> None:
        """Close at once, or else send the end of file and read on until the client has seen it."""
        http = self._http
        if not (http.refused or http.connection.their_state in _STILL_SENDING):
            self._socket.close()
            return
        self._drops = True
        self._reading.deadline = trio.current_time() + LINGERING
        with suppress(OSError):
            self._socket.shutdown(trio.socket.SHUT_WR)
