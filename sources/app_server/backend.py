"""The app-servers an operator chose, kept running, as one backend for every turn."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import Factory, frozen

from pipeline.errors import Failure, ProxyError, UsageError, only_member
from sources.app_server.binary import find_codex
from sources.app_server.catalog import write_catalog
from sources.app_server.held import HeldTurns, HoldingOptions
from sources.app_server.hermetic import Confinement
from sources.app_server.mcp_servers import configured_servers
from sources.app_server.place import Bounds, Place
from sources.app_server.stdio import StdioTransport
from sources.app_server.supervisor import AppServer, Connect, Patience
from sources.app_server.transport import Transport
from sources.app_server.websocket import WebSocketTransport

SCHEMES = ("ws://", "wss://", "unix://")


@frozen
class BackendOptions:
    """Where the app-servers are, and what a child of ours may do."""

    addresses: tuple[str, ...] = ("stdio",)
    codex: str = ""
    home: Path | None = None
    """The CODEX_HOME with somebody's login; without one, a child gets an empty one of its own."""
    token: str = ""
    web_search: bool = False
    view_image: bool = False
    mcp_servers: bool = False
    """Whether the MCP servers of its own configuration are used at all: run, and listed."""
    mcp_tools: bool = False
    """Whether the model is offered their tools."""
    overrides: dict[str, str] = Factory(dict[str, str])
    bounds: Bounds = Factory(Bounds)
    patience: Patience = Factory(Patience)
    holding: HoldingOptions = Factory(HoldingOptions)


class Pool:
    """Several app-servers as one: the least loaded ready one takes the next turn."""

    def __init__(
        self,
        servers: Iterable[AppServer],
        patience: float = 30.0,
        holding: HoldingOptions | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.servers = tuple(servers)
        self.bounds = bounds or Bounds()
        self.held = HeldTurns(holding)
        self._patience = patience

    @property
    def ready(self) -> bool:
        return any(server.ready for server in self.servers)

    @property
    def why_not(self) -> str:
        """Why none is ready, in full: for operators."""
        return "; ".join(f"{server.name}: {server.why_not}" for server in self.servers)

    def counters(self) -> Counter[str]:
        """What all of them did, since they were first started."""
        return sum((server.counters for server in self.servers), Counter[str]())

    async def lease(self) -> Place:
        """A place for a turn. Waits while everything starts; a dead server is left out."""
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
async def open_backend(options: BackendOptions) -> AsyncGenerator[Pool]:
    """Start the app-servers and keep them running; stop them at the end."""
    with tempfile.TemporaryDirectory(prefix="codex-sluice-") as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        servers = [
            AppServer(
                name=_name(address),
                connect=_connector(address, options, Path(folder), workspace),
                workspace=str(workspace),
                patience=options.patience,
                sees_files=options.view_image,
                hides_mcp=_hides_mcp(address, options),
            )
            for address in options.addresses
        ]
        try:
            async with trio.open_nursery() as nursery:
                for server in servers:
                    nursery.start_soon(server.run)
                yield Pool(servers, options.patience.handshake, options.holding, options.bounds)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


def _name(address: str) -> str:
    return "codex app-server" if address == "stdio" else address


def _hides_mcp(address: str, options: BackendOptions) -> bool:
    """Whether turns must be told to do without MCP servers; a child of ours may have none."""
    used = options.mcp_servers or address != "stdio"
    return used and not (options.mcp_servers and options.mcp_tools)


def _connector(address: str, options: BackendOptions, folder: Path, workspace: Path) -> Connect:
    if address.startswith(SCHEMES):

        async def connect(nursery: trio.Nursery) -> Transport:
            return await WebSocketTransport.connect(nursery, address, token=options.token)

        return connect
    if address != "stdio":
        raise UsageError(
            f"CODEX_APP_SERVER={address} is not possible; it takes stdio, or addresses that start "
            f"with {', '.join(SCHEMES)}"
        )
    codex = find_codex(options.codex)
    home = (options.home or folder / "home").absolute()
    home.mkdir(parents=True, exist_ok=True)
    confined = Confinement(
        home=home,
        workspace=workspace,
        web_search=options.web_search,
        view_image=options.view_image,
        mcp_servers=options.mcp_servers,
        overrides=options.overrides,
    )

    async def start(nursery: trio.Nursery) -> Transport:
        environment = confined.environment()
        catalog = await write_catalog(
            codex, environment, folder / "models.json", refresh=options.home is not None
        )
        known: frozenset[str] = frozenset()
        if not options.mcp_servers:
            known = await configured_servers(codex, environment, home)
        command = confined.command(codex, catalog=catalog, known_servers=known)
        return await StdioTransport.start(nursery, command, env=environment, cwd=str(workspace))

    return start
