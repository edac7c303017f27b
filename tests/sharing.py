"""One app-server and several users of it, as the parent and its workers share one."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import evolve, frozen

from pipeline.loose_json import Json, text_of
from pipeline.workers.hosting import Hosted
from pipeline.workers.line import Line
from sources.app_server.backend import WORKSPACE, BackendOptions, Pool, open_backend, open_children
from sources.app_server.listening_child import ListeningChild
from sources.app_server.shared import SharedCodex


@frozen
class Sharing:
    """The app-server that is run, and those who use it."""

    hosted: Hosted
    pools: list[Pool]
    folder: Path

    @property
    def child(self) -> ListeningChild:
        """The process that takes new turns."""
        leading = self.hosted.server.leading
        assert leading is not None
        assert isinstance(leading[1], ListeningChild)
        return leading[1]

    @property
    def socket(self) -> Path:
        """Where it is told to listen."""
        return Path(self.child.address.removeprefix("unix://"))


@asynccontextmanager
async def sharing(options: BackendOptions, users: int = 2) -> AsyncGenerator[Sharing]:
    """So many users of one app-server, with the real lines between, in one process."""
    with tempfile.TemporaryDirectory(prefix="sharing-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            (server,) = await stack.enter_async_context(open_children(options, folder))
            hosted = Hosted(0, server)
            nursery = await stack.enter_async_context(trio.open_nursery())
            pools = [
                await stack.enter_async_context(_user(hosted, options, folder, nursery))
                for _ in range(users)
            ]
            yield Sharing(hosted, pools, folder)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _user(
    hosted: Hosted, options: BackendOptions, folder: Path, nursery: trio.Nursery
) -> AsyncGenerator[Pool]:
    here, there = (trio.SocketStream(one) for one in trio.socket.socketpair())

    async def count(_: str, __: Json) -> None:
        hosted.server.turn_begins()

    async def learn(what: str, given: Json) -> None:
        if what == "use":
            await shared.use(text_of(given["address"]))
        else:
            shared.lose(text_of(given["reason"]), text_of(given["last_words"]))

    parents, workers = Line(here, count), Line(there, learn)
    shared = SharedCodex(partial(workers.tell, "turn", server=0))
    for task in (parents.run, workers.run):
        nursery.start_soon(task)
    nursery.start_soon(hosted.keep_told, parents)
    chosen = evolve(options, addresses=(), shared=(shared,), workspace=folder / WORKSPACE)
    async with open_backend(chosen) as pool:
        yield pool
