"""Starts and stops the whole server."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from pipeline.config import Settings
from pipeline.errors import only_member
from pipeline.recipe import Pipeline
from pipeline.serve.access.auth import Keys, check_exposure
from pipeline.serve.app import create_app
from pipeline.serve.backends import ServerBackend, open_backend
from pipeline.serve.http.listening import Listening, bind
from pipeline.serve.memory.peers import ALONE, Peers
from pipeline.serve.memory.seal import Seal
from pipeline.serve.memory.sealed import Sealed
from pipeline.serve.memory.sqlite import IN_MEMORY, StoreLimits, open_store
from pipeline.serve.routes.websocket import PATH
from pipeline.serve.server import Remembers, Server

OBJECTS_BETWEEN_COLLECTIONS: Final = 20_000
"""A request makes a few hundred objects and leaves hardly any behind."""


@frozen
class Running:
    """A running server."""

    url: str
    """Its URL, without /v1."""
    server: Server

    @property
    def backend(self) -> str:
        """The backend's name, for people."""
        return self.server.backend.name


@asynccontextmanager
async def serving(
    settings: Settings,
    recipe: Pipeline | None = None,
    *,
    backend: ServerBackend | None = None,
    demo: bool = False,
    peers: Peers = ALONE,
) -> AsyncGenerator[Running]:
    """Serve until the block is left; then running answers get a grace period to finish.

    By default the backend of the settings is started; UsageError says why that is not possible.
    """
    sockets = list(peers.listeners)
    if not sockets:
        check_exposure(settings.host, Keys.from_settings(settings))
        sockets = bind(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.enter_context(listener)
        if backend is None:
            backend = await stack.enter_async_context(open_backend(settings, demo=demo))
            await backend.check_login()
        path = store_path(settings, demo=demo)
        limits = StoreLimits(settings.store_mb, settings.store_days * 86_400)
        store = await stack.enter_async_context(open_store(path, limits))
        sealed = Sealed(_seal(settings, path))
        stop = trio.Event()
        try:
            async with trio.open_nursery() as jobs:
                remembers = Remembers(store, sealed, jobs, peers)
                server = create_app(settings, recipe, backend, remembers)
                async with trio.open_nursery() as nursery:
                    listening = Listening(server, settings, PATH)
                    await nursery.start(listening.run, sockets, stop.wait)
                    yield Running(url_of(settings.host, sockets), server)
                    stop.set()
                jobs.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


def collect_garbage_less_often() -> None:
    """Leave out of the collector what exists now, and let it run more rarely.

    A full collection stops every stream for milliseconds while thousands of them are open.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 20, 20)


def url_of(host: str, sockets: list[socket.socket]) -> str:
    """The URL of a server that listens on these sockets."""
    port = sockets[0].getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def store_path(settings: Settings, *, demo: bool) -> str:
    """Where responses are stored: `--demo` does not touch the default file."""
    return IN_MEMORY if demo and settings.store == Settings().store else settings.store


def _seal(settings: Settings, path: str) -> Seal:
    """The seal for compactions; by default its key lasts as long as the store."""
    if settings.seal_key_file:
        return Seal.from_file(settings.seal_key_file)
    if path == IN_MEMORY:
        return Seal.temporary()
    return Seal.from_file(str(Path(path).expanduser().with_name("seal.key")))
