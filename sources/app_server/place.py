"""Where a turn runs: a place on a running app-server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio
from attrs import frozen

from sources.app_server.capabilities import Capabilities
from sources.app_server.client import AppServerClient

if TYPE_CHECKING:
    from sources.app_server.held import HeldTurns


@frozen
class Place:
    """One app-server's connection, what it can do, and where its children's files are."""

    client: AppServerClient
    capabilities: Capabilities
    workspace: str
    nursery: trio.Nursery
    """Outlives the turn: what must still be said to the backend is said from here."""
    sees_files: bool = False
    """Whether turns get a file system to look at, as some versions need it to show pictures."""
    hides_mcp: bool = False
    """Whether turns run without the MCP servers that the backend's configuration names."""


@frozen
class Bounds:
    """How long a turn may be silent, and how long it may last, in seconds."""

    first_event: float = 120.0
    idle: float = 300.0
    total: float = 3600.0


class Backend(Protocol):
    """Whatever keeps app-servers running."""

    @property
    def bounds(self) -> Bounds:
        """How long a turn may take, unless it says otherwise."""
        ...

    @property
    def held(self) -> HeldTurns:
        """The turns that wait for their follow-ups."""
        ...

    async def lease(self) -> Place:
        """A place on the least loaded one. Raises ProxyError when there is none."""
        ...
