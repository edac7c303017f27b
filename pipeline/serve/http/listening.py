"""Listens on sockets, and shuts down within a time limit."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.serve.body import MIB
from pipeline.serve.http.interface import App
from pipeline.serve.http.keep_alive import KeepAlive
from pipeline.serve.http.tcp import TcpConnection

LAST_WORDS: Final = 2.0
"""How long responses that the server ends may take to send their end."""
BACKLOG: Final = 1024
OVERLOADED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
RETRY_INTERVAL: Final = 0.1
LOG_INTERVAL: Final = 60.0
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def bind(host: str, port: int) -> list[socket.socket]:
    """The sockets to listen on; UsageError says why there are none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise UsageError(f"PROXY_HOST={host} is no address: {error}") from None
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            # A free port is chosen once, for all addresses of the host.
            chosen = sockets[0].getsockname()[1] if sockets and not port else port
            listener.bind((address[0], chosen, *address[2:]))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            if getattr(error, "errno", None) == errno.EADDRNOTAVAIL and len(found) > 1:
                continue  # such as ::1 on a machine without IPv6
            for bound in sockets:
                bound.close()
            raise UsageError(
                f"{host}:{port} cannot be listened on: {reason}; PROXY_PORT chooses another port"
            ) from None
        listener.listen(BACKLOG)
        listener.setblocking(False)
        sockets.append(listener)
    return sockets


class Listening:
    """Serves an app on sockets until `stop` returns, then shuts down."""

    def __init__(self, server: App, settings: Settings, websocket_path: str) -> None:
        self._server = server
        self._grace = settings.shutdown_grace
        self._context = WorkerContext(None)
        self._config = config_for(settings, websocket_path)
        self._idle = KeepAlive(settings.keep_alive)
        self._streams: set[trio.SocketStream] = set()
        self._last_left = trio.Event()

    async def run(
        self,
        sockets: list[socket.socket],
        stop: Callable[[], Awaitable[object]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(s)) for s in sockets]
        async with trio.open_nursery() as connections:
            connections.start_soon(self._idle.run)
            try:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept, listener, connections)
                    task_status.started()
                    await stop()
                    accepting.cancel_scope.cancel()
                await self._end()
            finally:
                # Hypercorn's sends cannot be cancelled, but they can fail.
                for stream in list(self._streams):
                    stream.socket.close()
                connections.cancel_scope.cancel()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        """Accept connections until cancelled, at intervals where no file can be opened.

        As trio.serve_listeners does, but that logs a traceback ten times a second.
        """
        silent_until = -inf
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in OVERLOADED:
                        raise
                    if trio.current_time() >= silent_until:
                        _log.error("connections cannot be accepted", why=error.strerror)
                        silent_until = trio.current_time() + LOG_INTERVAL
                    await trio.sleep(RETRY_INTERVAL)
                else:
                    connections.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._streams.add(stream)
        try:
            await TcpConnection(stream, self._idle, self._config).run(self._app, self._context)
        except* OSError:
            pass  # the client went away
        except* Exception as group:  # noqa: BLE001  # one connection's bug is not the server's end
            _log.error("a connection broke", exc_info=group)
        finally:
            self._streams.discard(stream)
            if not self._streams:
                self._last_left.set()

    async def _app(self, scope: Any, receive: Any, send: Any, *_: object) -> None:
        await self._server(scope, receive, send)

    async def _end(self) -> None:
        """Let answers finish; then end them; then close the connections that are left."""
        self._server.stopping.set()
        await self._context.terminated.set()
        self._idle.end()  # connections that are idle close now
        if not await self._quiet_within(self._grace):
            _log.warning("ending answers that take too long", **self._left())
        self._server.turns.end()
        if not await self._quiet_within(LAST_WORDS):
            _log.warning("hanging up", **self._left())

    def _left(self) -> dict[str, int]:
        return {"connections": len(self._streams), "background": len(self._server.jobs)}

    async def _quiet_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            if self._streams:
                self._last_left = trio.Event()
                await self._last_left.wait()
            for job in list(self._server.jobs.values()):
                await job.over.wait()
        return not self._streams and not self._server.jobs


class ServingConfig(Config):
    """Hypercorn's settings, the paths of WebSockets, and the write timeout."""

    write_timeout: float = 60.0
    websocket_paths: frozenset[str] = frozenset()


def config_for(settings: Settings, websocket_path: str) -> Config:
    """Hypercorn's settings. It times the head of a request as it does an idle connection."""
    config = ServingConfig()
    if settings.responses_websocket:
        config.websocket_paths = frozenset({websocket_path})
    config.websocket_max_message_size = int(settings.body_limit_mb * MIB)
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.keep_alive_timeout = settings.keep_alive
    config.write_timeout = settings.write_timeout
    config.keep_alive_max_requests = 1_000_000
    config.include_server_header = False
    config.h11_max_incomplete_size = 64 * 1024
    return config
