"""Settings of the HTTP endpoint, apart from the modules that import the HTTP server."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pipeline.options import DAY, HOUR
from pipeline.options import server_flag as flag

SHORTEST: Final = 0.01
"""Seconds; a timeout of 0 would end everything at once."""


@frozen(slots=False)
class ListenOptions:
    """The address to listen on, and the number of processes."""

    host: str = flag(
        "PROXY_HOST",
        "127.0.0.1",
        "the address to listen on; all but loopback need API keys",
    )
    port: int = flag(
        "PROXY_PORT",
        11435,
        "the port to listen on; 0: a free one",
        bounds=(0, 65_535),
    )
    workers: int = flag(
        "PROXY_WORKERS",
        1,
        "the number of worker processes; they share the port, the app-servers and the store, "
        "and each gets its part of the limits on requests, turns and the queue, rounded up",
        bounds=(1, 64),
        hint="more workers than CPU cores do not help",
    )


@frozen(slots=False)
class HttpOptions:
    """The largest request, and timeouts of a connection."""

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
        "how long a client may read nothing of a response before it is disconnected; "
        "0 is rejected, because there must be a limit",
        bounds=(SHORTEST, HOUR),
        hint="without a limit, a client that stops reading would keep its turn and connection",
    )
    keep_alive: float = flag(
        "PROXY_KEEP_ALIVE_S",
        60.0,
        "how long an idle connection is kept open for the next request",
        bounds=(SHORTEST, DAY),
    )
    prime_window: float = flag(
        "PROXY_PRIME_WINDOW_S",
        2.0,
        "how long the head of a stream waits for the first event, so that an early failure gets "
        "its own status; 0: sent at once",
        bounds=(0, HOUR),
    )
    ping_interval: float = flag(
        "PROXY_PING_INTERVAL_S",
        15.0,
        "after how much silence a stream gets a comment",
        bounds=(SHORTEST, HOUR),
    )


@frozen(slots=False)
class EndpointOptions:
    """Optional endpoints and features, and the time to stop."""

    responses_websocket: bool = flag(
        "PROXY_RESPONSES_WEBSOCKET",
        True,
        "accept WebSockets on /v1/responses, as Codex uses; otherwise answer 426",
    )
    expose_mcp_tools: bool = flag(
        "PROXY_EXPOSE_MCP_TOOLS",
        False,
        "offer the model the tools of Codex's own MCP servers, which Codex runs itself; tools "
        "with side effects only if Codex's configuration approves them; needs CODEX_MCP_SERVERS",
    )
    shutdown_grace: float = flag(
        "PROXY_SHUTDOWN_GRACE_S",
        20.0,
        "how long running answers may take to finish on SIGTERM; 0: they end at once",
        bounds=(0, DAY),
    )
