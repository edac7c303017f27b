"""One app-server and several users of it, as a supervisor and its workers share one."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve, frozen

from pipeline.loose_json import Json
from pipeline.workers import ipc
from pipeline.workers.app_servers import lease, leased_app_server
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.pool import WORKSPACE, Pool, open_children, open_pool
from sources.app_server.process.supervisor import AppServer
from sources.app_server.transport.listening_child import ListeningChild


@frozen
class Sharing:
    """The app-server that is run, and those who use it."""

    server: AppServer
    pools: list[Pool]
    folder: Path

    @property
    def child(self) -> ListeningChild:
        """The process that takes new turns."""
        leading = self.server.leading
        assert leading is not None
        assert isinstance(leading[1], ListeningChild)
        return leading[1]

    @property
    def socket(self) -> Path:
        """Where it is told to listen."""
        return Path(self.child.address.removeprefix("unix://"))


@asynccontextmanager
async def sharing(options: BackendOptions, users: int = 2) -> AsyncGenerator[Sharing]:
    """So many users of one app-server, with the real messages between, in one process."""
    with tempfile.TemporaryDirectory(prefix="sharing-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            (server,) = await stack.enter_async_context(open_children(options, folder))
            nursery = await stack.enter_async_context(trio.open_nursery())

            async def handle(connection: ipc.Connection, _: Json) -> object:
                return await lease(server, connection)

            supervisor = folder / "ipc.sock"
            await nursery.start(ipc.serve, supervisor, handle)
            pools = [
                await stack.enter_async_context(open_pool(_leased(options, supervisor)))
                for _ in range(users)
            ]
            yield Sharing(server, pools, folder)
            nursery.cancel_scope.cancel()


def _leased(options: BackendOptions, supervisor: Path) -> BackendOptions:
    options = evolve(options, addresses=(), workspace=supervisor.parent / WORKSPACE)
    return evolve(options, shared=(leased_app_server(supervisor, 0, options),))
