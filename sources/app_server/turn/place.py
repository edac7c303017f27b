"""Where a turn runs: a place on a running app-server."""

from __future__ import annotations

import trio
from attrs import Factory, frozen

from pipeline.options import DAY
from pipeline.options import backend_flag as flag
from sources.app_server.protocol.capabilities import Capabilities, Learned
from sources.app_server.protocol.client import AppServerClient


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
    learned: Learned = Factory(Learned)


@frozen(slots=False)
class TimeoutOptions:
    """How long a turn may be silent, and how long it may last, as an operator writes it."""

    codex_first_event_timeout: float = flag(
        "CODEX_FIRST_EVENT_TIMEOUT_S",
        120.0,
        "how long a turn may take to say its first word",
        bounds=(1, DAY),
    )
    codex_idle_timeout: float = flag(
        "CODEX_IDLE_TIMEOUT_S",
        300.0,
        "how long it may then be silent",
        bounds=(1, DAY),
    )
    codex_turn_timeout: float = flag(
        "CODEX_TURN_TIMEOUT_S",
        3600.0,
        "how long a turn may take in all",
        bounds=(1, 7 * DAY),
    )


@frozen
class Bounds:
    """How long a turn may be silent, and how long it may last, in seconds."""

    first_event: float = 120.0
    idle: float = 300.0
    total: float = 3600.0
    outputs: float = 10.0
    """How long a turn that waits for the outputs of its calls is listened to in silence, where the
    backend does not tell when a response ends, and nothing cuts the turn before."""
