"""Turns on live app-servers as a source of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from pipeline.errors import ProxyError, only_member
from pipeline.stage import Incoming
from pipeline.turn import Turn
from sources.app_server.protocol.images import check_images
from sources.app_server.protocol.sendable import check_sendable
from sources.app_server.turn.incoming import AppServerTurn
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.record import Recorder
from sources.decode.turn_decoder import Watcher


class AppServerSource:
    """Opens a turn on whichever app-server the backend leases."""

    real_time = True

    def __init__(
        self,
        backend: Backend,
        bounds: Bounds | None = None,
        *,
        record: Callable[[], Recorder | None] = lambda: None,
        watch: Watcher | None = None,
    ) -> None:
        """`record` makes the recorder of one turn, where turns are recorded."""
        self._backend = backend
        self._bounds = bounds
        self._record = record
        self._watch = watch

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        bounds = self._bounds or self._backend.bounds
        running = AppServerTurn(self._backend, turn, bounds, record=self._record, watch=self._watch)
        try:
            async with trio.open_nursery() as nursery:
                try:
                    check_sendable(turn)
                    check_images(turn.items)
                except ProxyError as error:
                    running.fail(error.failure)
                else:
                    nursery.start_soon(running.run)
                try:
                    yield running
                finally:
                    running.leave()
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None
