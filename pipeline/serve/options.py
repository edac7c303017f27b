"""Settings of the HTTP endpoint, apart from the modules that import the HTTP server."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pipeline.options import DAY, HOUR
from pipeline.options import server_flag as flag

SHORTEST: Final = 0.01
"""Seconds: a time-out of 0 would end everything before it began."""


@frozen(slots=False)
class ListenOptions:
    """Where the server listens, and with how many processes."""

    host: str = flag(
        "PROXY_HOST", "127.0.0.1", "the address to listen on; any but loopback needs API keys"
    )
    port: int = flag(
        "PROXY_PORT",
        11435,
        "the port to listen on; 0 takes a free one",
        bounds=(0, 65_535),
    )
    workers: int = flag(
        "PROXY_WORKERS",
        1,
        "how many processes serve; they share the port, the app-servers and the store, "
        "and divide the limits on requests, turns and the queue among them, rounded up",
        bounds=(1, 64),
        hint="more workers than CPU cores do not help",
    )


@frozen(slots=False)
class HttpOptions:
    """How large a request may be, and how long each side of a connection waits."""

    body_limit_mb: float = flag(
        "PROXY_BODY_LIMIT_MB",
        16.0,
        "the largest request body in MiB, after decompression",
        bounds=(0.001, 1_024),
    )
    read_timeout: float = flag(
        "PROXY_READ_TIMEOUT_S",
        30.0,
        "how long a client may take to send its request",
        bounds=(SHORTEST, HOUR),
    )
    write_timeout: float = flag(
        "PROXY_WRITE_TIMEOUT_S",
        60.0,
        "how long a client may take none of its answer that is ready before it is hung up on; "
        "there is always such a limit, so 0 is refused",
        bounds=(SHORTEST, HOUR),
        hint="without a limit, a client that stops reading would keep its turn and its connection",
    )
    keep_alive: float = flag(
        "PROXY_KEEP_ALIVE_S",
        60.0,
        "how long an idle connection is kept for the next request",
        bounds=(SHORTEST, DAY),
    )
    prime_window: float = flag(
        "PROXY_PRIME_WINDOW_S",
        2.0,
        "how long a stream waits for its first event, so that an early failure gets a status; "
        "0 sends the head at once",
        bounds=(0, HOUR),
    )
    ping_interval: float = flag(
        "PROXY_PING_INTERVAL_S",
        15.0,
        "how long a stream may be silent before a comment is sent",
        bounds=(SHORTEST, HOUR),
    )


@frozen(slots=False)
class EndpointOptions:
    """What the endpoint offers, and how long it takes to stop."""

    responses_websocket: bool = flag(
        "PROXY_RESPONSES_WEBSOCKET",
        True,
        "speak WebSocket on /v1/responses, as Codex does; otherwise it is answered with 426",
    )
    expose_mcp_tools: bool = flag(
        "PROXY_EXPOSE_MCP_TOOLS",
        False,
        "offer the model the tools of Codex's own MCP servers, which Codex then runs itself; those "
        "that change things only if its configuration approves of them; needs CODEX_MCP_SERVERS",
    )
    shutdown_grace: float = flag(
        "PROXY_SHUTDOWN_GRACE_S",
        20.0,
        "how long running answers may take to end on SIGTERM; 0 ends them at once",
        bounds=(0, DAY),
    )
