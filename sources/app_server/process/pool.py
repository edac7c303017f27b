"""A pool of app-servers, kept running: one backend for all turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from pipeline.errors import Failure, ProxyError, UsageError, only_member
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.starting import Starter
from sources.app_server.process.supervisor import NOISE, AppServer
from sources.app_server.transport.transport import Connect, Transport
from sources.app_server.transport.websocket import WebSocketTransport
from sources.app_server.turn.kept import KeepOptions, KeptThreads
from sources.app_server.turn.place import Bounds, Place

__all__ = ["BackendOptions", "Pool", "open_children", "open_pool"]

SCHEMES = ("ws://", "wss://", "unix://")
WORKSPACE = "workspace"
SHARED_NOISE = (*NOISE, "thread/deleted")
"""Notifications that a shared app-server sends to every client about other clients."""


class Pool:
    """Several app-servers as one backend: the least loaded ready one gets the next turn."""

    def __init__(
        self,
        servers: Iterable[AppServer],
        patience: float = 30.0,
        keep: KeepOptions | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.servers = tuple(servers)
        self.bounds = bounds or Bounds()
        self.kept = KeptThreads(keep)
        self._patience = patience

    @property
    def ready(self) -> bool:
        return any(server.ready for server in self.servers)

    @property
    def why_not(self) -> str:
        """Why none is ready, with details for operators."""
        return "; ".join(f"{server.name}: {server.why_not}" for server in self.servers)

    def counters(self) -> Counter[str]:
        """The counters of all of them since the start."""
        return sum((server.counters for server in self.servers), Counter[str]())

    async def lease(self) -> Place:
        """A place for a turn, waiting while all app-servers start; dead ones are left out."""
        if not self.ready:
            await self._any_ready()
        ready = [server for server in self.servers if server.ready]
        if not ready:
            problems = "; ".join(f"{server.name}: {server.problem}" for server in self.servers)
            raise ProxyError(
                Failure(
                    f"no backend is ready: {problems}",
                    status=503,
                    type="server_error",
                    code="server_is_overloaded",
                    retry_after=5.0,
                )
            )
        return await min(ready, key=lambda server: server.load).place()

    async def _any_ready(self) -> None:
        with trio.move_on_after(self._patience):
            async with trio.open_nursery() as nursery:

                async def wait_for(server: AppServer) -> None:
                    await server.until_ready()
                    nursery.cancel_scope.cancel()

                for server in self.servers:
                    nursery.start_soon(wait_for, server)


@asynccontextmanager
async def open_pool(options: BackendOptions) -> AsyncGenerator[Pool]:
    """Start the app-servers and keep them running; stop them at the end."""
    with ExitStack() as stack:
        folder = options.workspace
        if folder is None or "stdio" in options.addresses:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="codex-sluice-")))
        workspace = options.workspace or _workspace_in(folder)
        servers = [
            AppServer(
                name=_name(address),
                connect=_connector(address, options, folder, workspace),
                workspace=str(workspace),
                patience=options.patience,
                sees_files=options.view_image,
                hides_mcp=hides_mcp(options, ours=address == "stdio"),
            )
            for address in options.addresses
        ]
        servers += options.shared
        async with _kept_running(servers):
            yield Pool(servers, options.patience.handshake, options.keep, options.bounds)


@asynccontextmanager
async def open_children(options: BackendOptions, folder: Path) -> AsyncGenerator[list[AppServer]]:
    """Start an app-server for each `stdio` and keep it running, for the worker processes.

    They listen in the folder, which must be private; this process runs no turns on them.
    """
    workspace = _workspace_in(folder)
    children = [address for address in options.addresses if address == "stdio"]
    starter = Starter(options, folder, workspace) if children else None
    servers = [
        AppServer(
            name=_name(address),
            connect=starter.on_sockets(f"codex-{number}"),
            workspace=str(workspace),
            patience=options.patience,
            quiet=SHARED_NOISE,
        )
        for number, address in enumerate(children)
        if starter is not None
    ]
    async with _kept_running(servers):
        yield servers


@asynccontextmanager
async def _kept_running(servers: Iterable[AppServer]) -> AsyncGenerator[None]:
    try:
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(server.run)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only_member(group) from None


def _workspace_in(folder: Path) -> Path:
    workspace = folder / WORKSPACE
    workspace.mkdir()
    return workspace


def _name(address: str) -> str:
    return "codex app-server" if address == "stdio" else address


def hides_mcp(options: BackendOptions, *, ours: bool) -> bool:
    """Whether each turn must switch MCP servers off; `ours` says that this server started Codex."""
    used = options.mcp_servers or not ours
    return used and not (options.mcp_servers and options.mcp_tools)


def _connector(address: str, options: BackendOptions, folder: Path, workspace: Path) -> Connect:
    if address.startswith(SCHEMES):

        async def connect(nursery: trio.Nursery) -> Transport:
            return await WebSocketTransport.connect(nursery, address, token=options.token)

        return connect
    if address != "stdio":
        raise UsageError(
            f"CODEX_APP_SERVER must be stdio or an address that starts "
            f"with {', '.join(SCHEMES)} (got {address})"
        )
    return Starter(options, folder, workspace).on_stdio
