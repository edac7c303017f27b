"""The whole server as several processes: the parent binds, starts, watches and stops them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Final

import trio
from attrs import evolve, frozen

from pipeline.errors import only_member
from pipeline.serve.auth import Keys, check_exposure
from pipeline.serve.door import choose_codex
from pipeline.serve.listening import LAST_WORDS, bind
from pipeline.serve.running import place_of_store, url_of
from pipeline.settings import Settings
from pipeline.store.sqlite import IN_MEMORY, WAIT_FOR_LOCK, prepare_store
from pipeline.workers.hosting import Hosted
from pipeline.workers.orders import Orders, share_of
from pipeline.workers.team import GRACE, Team
from sources.app_server.backend import WORKSPACE, open_children

PREFIX: Final = "codex-sluice-"
MEMORY: Final = "/dev/shm"  # noqa: S108


@frozen
class RunningTeam:
    """Workers that listen."""

    url: str
    """Where they are, without the /v1."""
    backend: str
    """What runs the turns, for people."""


@asynccontextmanager
async def serving(settings: Settings, *, demo: bool = False) -> AsyncGenerator[RunningTeam]:
    """Serve until the block is left; then running answers may finish within their grace.

    UsageError says why that cannot be, in the words of the worker that found out.
    """
    check_exposure(settings.host, Keys.from_settings(settings))
    sockets = bind(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.enter_context(listener)
        # Only its owner can look into it. Codex links its socket into it, or has it there.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX)))
        store = place_of_store(settings, demo=demo)
        if store == IN_MEMORY:
            store = stack.enter_context(kept_for_now(settings.store_mb))
        await prepare_store(store)
        orders = Orders(0, share_of(settings, store), tuple(s.fileno() for s in sockets), -1)
        hosted: list[Hosted] = []
        if demo or not settings.backend:
            chosen = await stack.enter_async_context(choose_codex(settings, demo=demo))
            servers = await stack.enter_async_context(open_children(chosen.options, folder))
            hosted = [Hosted(number, server) for number, server in enumerate(servers)]
            orders = evolve(
                orders,
                settings=evolve(orders.settings, backend=""),
                children=len(servers),
                addresses=tuple(one for one in chosen.options.addresses if one != "stdio"),
                codex=chosen.codex,
                backend=chosen.name,
                workspace=str(folder / WORKSPACE),
            )
        team = Team(settings.workers, orders, hosted)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(team.run)
                backend = orders.backend or settings.backend
                yield RunningTeam(url_of(settings.host, sockets), backend)
                for listener in sockets:
                    listener.close()  # who knocks now is not answered by anybody
                team.stop()
                longest = settings.shutdown_grace + LAST_WORDS + WAIT_FOR_LOCK + GRACE
                nursery.cancel_scope.deadline = trio.current_time() + longest
        except BaseExceptionGroup as group:
            raise only_member(group) from None


@contextmanager
def kept_for_now(megabytes: float) -> Generator[str]:
    """A file for all workers that ends with us; in memory, if there is a place with room for it."""
    needed = 2 * megabytes * 1_000_000  # with its index and its journal
    usable = Path(MEMORY).is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)
    in_memory = usable and disk_usage(MEMORY).free >= needed
    with TemporaryDirectory(prefix=PREFIX, dir=MEMORY if in_memory else None) as folder:
        yield str(Path(folder) / "responses.sqlite3")
