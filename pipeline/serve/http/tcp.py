"""One TCP connection: reading, writing and closing."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import h11
import trio
from hypercorn.events import Closed, RawData

from pipeline.serve.http.http1 import Http1
from pipeline.serve.http.keep_alive import KeepAlive

LINGERING: Final = 2.0
"""How long a client that is still sending may take to read why it was refused."""
MOST_READ: Final = 65_536
MOST_AHEAD: Final = 4 * MOST_READ
"""How much is read of requests that are sent before an earlier response has ended."""
_STILL_SENDING: Final = (h11.SEND_BODY, h11.ERROR)
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

if TYPE_CHECKING:  # their annotations are half unknown

    class TCPServer:
        """Hypercorn's side of one connection."""

        protocol: Any
        config: Any
        context: Any
        idle_task: Any
        send_lock: trio.Lock
        stream: trio.SocketStream

        def __init__(self, *parts: Any) -> None: ...
        async def run(self) -> None: ...
        async def protocol_send(self, event: Any) -> None: ...
        async def _read_data(self) -> None: ...
        async def _close(self) -> None: ...
        async def _initiate_server_close(self) -> None: ...

else:
    TCPServer = import_module("hypercorn.trio.tcp_server").TCPServer


class _IdleTask:
    """Replaces hypercorn's task that closes an idle connection."""

    def __init__(self, idle: KeepAlive, close: Callable[[], Awaitable[None]]) -> None:
        self._idle = idle
        self._close = close
        self._spawn: Callable[[Callable[[], Awaitable[None]]], None] | None = None
        self._over = False

    async def restart(self, task_group: Any, _: object) -> None:
        """The connection is idle from now on."""
        if not self._over:
            self._spawn = task_group.spawn
            self._idle.wait(self.close_soon)

    async def stop(self) -> None:
        """A request has come."""
        self._idle.leave(self.close_soon)

    def end(self) -> None:
        """The client sends no more requests."""
        self._over = True
        self._idle.leave(self.close_soon)

    def close_soon(self) -> None:
        if self._spawn is not None:
            self._spawn(self._close_shielded)

    async def _close_shielded(self) -> None:
        with trio.CancelScope(shield=True):
            await self._close()


class _Pause:
    """Replaces the event that hypercorn waits for while a request is sent too early.

    Hypercorn does not read while it waits, and so does not see the client leave.
    """

    def __init__(self, read_ahead: Callable[[], Awaitable[None]]) -> None:
        self._read_ahead = read_ahead
        self._over = trio.Event()

    async def clear(self) -> None:
        self._over = trio.Event()

    async def set(self) -> None:
        self._over.set()

    async def wait(self) -> None:
        """Until the response has ended. BrokenResourceError if the client has left before."""
        left = False

        async def listen() -> None:
            nonlocal left
            await self._read_ahead()
            left = True
            self._over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await self._over.wait()
            nursery.cancel_scope.cancel()
        if left:
            raise trio.BrokenResourceError("the client has left")


class TcpConnection(TCPServer):
    """One connection. A client that is refused while it sends can still read the response.

    Closing a socket with unread bytes resets the connection, and the client loses the
    response that it has not read yet.
    """

    def __init__(self, idle: KeepAlive, *parts: Any) -> None:
        super().__init__(*parts)
        self.idle_task = _IdleTask(idle, self._initiate_server_close)
        self._reader: trio.lowlevel.Task | None = None
        self._ahead = b""
        self._all_read = trio.Event()
        self._lingers = False

    def _open_file(self) -> int:
        """The socket's number; ClosedResourceError if it has none any more."""
        number = self.stream.socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError("the connection was closed")
        return number

    # -- writing ---------------------------------------------------------------------------------

    async def protocol_send(self, event: Any) -> None:
        if isinstance(event, RawData):
            await self.write(event.data)
        else:
            await super().protocol_send(event)

    async def write(self, data: bytes) -> None:
        """Write at once what the socket takes; wait only for the rest.

        Nearly always it takes everything, and then the lock, the shield and the checkpoint that
        waiting needs would cost several times as much as the write. A cancelled sender has either
        written nothing or everything, so no chunk is ever cut in two.
        """
        try:
            if not self.send_lock.locked():
                data = data[self._write(data) :]
            if data:
                with trio.CancelScope(shield=True):
                    await self._write_all(data)
        except (OSError, *_GONE):
            await self.protocol.handle(Closed())

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._open_file(), data)
        except BlockingIOError:
            return 0

    async def _write_all(self, data: bytes) -> None:
        """Write as the client reads; close the connection if it reads nothing for too long."""
        async with self.send_lock:
            while data:
                with trio.move_on_after(self.config.write_timeout) as waiting:
                    await trio.lowlevel.wait_writable(self._open_file())
                if waiting.cancelled_caught:
                    self.stream.socket.close()
                data = data[self._write(data) :]

    # -- reading ---------------------------------------------------------------------------------

    async def _read_data(self) -> None:
        of = self.protocol
        of.protocol = Http1(
            self.write,
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
        of.protocol.can_read = _Pause(self._read_ahead)
        self._reader = trio.lowlevel.current_task()
        try:
            await self._read_to_the_end()
            await of.handle(Closed())
        finally:
            self.idle_task.end()
            self._all_read.set()

    async def _read_to_the_end(self) -> None:
        data = b"\n"
        try:
            while data:
                data, self._ahead = self._ahead or await self._read(), b""
                await self.protocol.handle(RawData(data))
        except (OSError, *_GONE):
            return

    async def _read(self) -> bytes:
        """What the client has sent; nothing after its end of file."""
        while True:
            await trio.lowlevel.wait_readable(self._open_file())
            try:
                return os.read(self._open_file(), MOST_READ)
            except BlockingIOError:
                continue

    async def _read_ahead(self) -> None:
        """Read what is sent too early, within bounds, until the client leaves."""
        try:
            while data := await self._read():
                self._ahead += data
                if len(self._ahead) > MOST_AHEAD:  # it has to wait, and is noticed when written to
                    await trio.sleep_forever()
        except (OSError, *_GONE):
            return

    # -- ending ----------------------------------------------------------------------------------

    async def _close(self) -> None:
        reading = getattr(self.protocol.protocol, "connection", None)
        if not self._lingers and getattr(reading, "their_state", None) in _STILL_SENDING:
            self._lingers = True
            with trio.move_on_after(LINGERING):
                await self._let_it_finish()
        await super()._close()

    async def _let_it_finish(self) -> None:
        """Send the end of file, and read on until the client has seen it."""
        try:
            await self.stream.send_eof()
            if trio.lowlevel.current_task() is not self._reader:
                await self._all_read.wait()
            while not self._all_read.is_set() and await self.stream.receive_some():
                pass
        except (trio.BusyResourceError, *_GONE):
            pass  # it has left
