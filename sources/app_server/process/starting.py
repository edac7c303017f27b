"""Starts a confined Codex, with a list of models and the chosen MCP servers."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import trio

from pipeline.errors import UsageError
from sources.app_server.process.binary import find_codex
from sources.app_server.process.catalog import write_catalog
from sources.app_server.process.hermetic import Confinement
from sources.app_server.process.options import BackendOptions
from sources.app_server.protocol.mcp_servers import configured_servers
from sources.app_server.transport.listening_child import ListeningChild
from sources.app_server.transport.stdio import StdioTransport
from sources.app_server.transport.transport import Connect, Transport

LONGEST_SOCKET: Final = 107 if sys.platform == "linux" else 103
"""The most bytes in the path of a socket file."""
MOST_LIVES: Final = 999_999


class Start(NamedTuple):
    """The command and environment of a process."""

    command: list[str]
    environment: dict[str, str]


class Starter:
    """Starts confined child processes, each with the newest list of models, in one folder."""

    def __init__(self, options: BackendOptions, folder: Path, workspace: Path) -> None:
        self._options = options
        self._folder = folder
        self._workspace = workspace
        self._codex = find_codex(options.codex)
        self._home = (options.home or folder / "home").absolute()
        self._home.mkdir(parents=True, exist_ok=True)
        self._confined = Confinement(
            home=self._home,
            workspace=workspace,
            web_search=options.web_search,
            view_image=options.view_image,
            mcp_servers=options.mcp_servers,
            overrides=options.overrides,
        )

    async def on_stdio(self, nursery: trio.Nursery) -> Transport:
        """A child process on stdio, used by this process alone."""
        start = await self._prepare()
        return await StdioTransport.start(
            nursery, start.command, env=start.environment, cwd=str(self._workspace)
        )

    def on_sockets(self, name: str) -> Connect:
        """Starts child processes that listen in the folder, each on its own socket file.

        UsageError if the folder's path is too long for that.
        """
        spare = LONGEST_SOCKET - len(os.fsencode(self._folder / f"{name}-{MOST_LIVES}.sock"))
        if spare < 0:
            raise UsageError(
                f"the path of a socket file in {self._folder} is too long for this system, by "
                f"{-spare} bytes; set TMPDIR to a shorter folder, such as /tmp"
            )
        numbers = count(1)

        async def start(nursery: trio.Nursery) -> Transport:
            socket = self._folder / f"{name}-{next(numbers)}.sock"
            start = await self._prepare(f"unix://{socket}")
            return await ListeningChild.start(
                nursery, start.command, socket, env=start.environment, cwd=str(self._workspace)
            )

        return start

    async def _prepare(self, listen: str = "") -> Start:
        options, environment = self._options, self._confined.environment()
        catalog = await write_catalog(
            self._codex,
            environment,
            self._folder / "models.json",
            refresh=options.home is not None,
        )
        known: frozenset[str] = frozenset()
        if not options.mcp_servers:
            known = await configured_servers(self._codex, environment, self._home)
        command = self._confined.command(
            self._codex, listen=listen, catalog=catalog, known_servers=known
        )
        return Start(command, environment)
