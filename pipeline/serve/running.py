"""The whole server, from its settings to its last byte."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio
from attrs import frozen

from pipeline.assembly import Settings
from pipeline.chain import Pipeline
from pipeline.errors import only_member
from pipeline.serve.app import Remembers, Server, create_app
from pipeline.serve.auth import Keys, check_exposure
from pipeline.serve.door import Door, open_door
from pipeline.serve.http.listening import Listening, bind
from pipeline.serve.peers import ALONE, Peers
from pipeline.serve.sealed import Sealed
from pipeline.serve.websocket import PATH
from pipeline.store.seal import Seal
from pipeline.store.sqlite import IN_MEMORY, Bounds, open_store


@frozen
class Running:
    """A server that listens."""

    url: str
    """Where it is, without the /v1."""
    server: Server

    @property
    def backend(self) -> str:
        """What runs the turns, for people."""
        return self.server.door.name


@asynccontextmanager
async def serving(
    settings: Settings,
    recipe: Pipeline | None = None,
    *,
    door: Door | None = None,
    demo: bool = False,
    peers: Peers = ALONE,
) -> AsyncGenerator[Running]:
    """Serve until the block is left; then running answers may finish within their grace.

    Without a door, the backend of the settings is opened; UsageError says why that cannot be.
    """
    sockets = list(peers.listeners)
    if not sockets:
        check_exposure(settings.host, Keys.from_settings(settings))
        sockets = bind(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.enter_context(listener)
        if door is None:
            door = await stack.enter_async_context(open_door(settings, demo=demo))
            await door.check_login()
        place = place_of_store(settings, demo=demo)
        kept = Bounds(settings.store_mb, settings.store_days * 86_400)
        store = await stack.enter_async_context(open_store(place, kept))
        sealed = Sealed(_seal(settings, place))
        stop = trio.Event()
        try:
            async with trio.open_nursery() as jobs:
                remembers = Remembers(store, sealed, jobs, peers)
                server = create_app(settings, recipe, door, remembers)
                async with trio.open_nursery() as nursery:
                    listening = Listening(server, settings, PATH)
                    await nursery.start(listening.run, sockets, stop.wait)
                    yield Running(url_of(settings.host, sockets), server)
                    stop.set()
                jobs.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


def url_of(host: str, sockets: list[socket.socket]) -> str:
    """Where a server is that listens on these."""
    port = sockets[0].getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def place_of_store(settings: Settings, *, demo: bool) -> str:
    """Where responses are kept: a demonstration leaves what is usually kept alone."""
    return IN_MEMORY if demo and settings.store == Settings().store else settings.store


def _seal(settings: Settings, place: str) -> Seal:
    """What is sealed can be opened as long as what is stored can be found."""
    if settings.seal_key_file:
        return Seal.from_file(settings.seal_key_file)
    if place == IN_MEMORY:
        return Seal.for_now()
    return Seal.from_file(str(Path(place).expanduser().with_name("seal.key")))
