"""The HTTP endpoint: where it listens, who may use it and how much, what it writes down."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from attrs import frozen

from pipeline import flags
from pipeline.flags import Escaped

ParallelCalls: TypeAlias = Literal["request", "true", "false"]
LogFormat: TypeAlias = Literal["auto", "json", "pretty"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

flag = partial(flags.flag, group="server")


@frozen(slots=False)
class ServerFlags:
    """What `serve` needs beside a pipeline and a backend."""

    host: str = flag(
        "PROXY_HOST", "127.0.0.1", "the address to listen on; any but loopback needs API keys"
    )
    port: int = flag("PROXY_PORT", 11435, "the port to listen on; 0 takes a free one")
    workers: int = flag(
        "PROXY_WORKERS",
        1,
        "how many processes serve, 1 to 64; they share the port, the app-servers and the store, "
        "and divide the limits on requests, turns and the queue among them, rounded up",
    )
    api_keys: str = flag(
        "PROXY_API_KEYS",
        "",
        "the keys that clients may use, as name:key with commas between; none are needed on "
        "loopback",
        secret=True,
    )
    api_keys_file: str = flag(
        "PROXY_API_KEYS_FILE", "", "a file with one name:key on each line, instead or besides"
    )
    metrics_token: str = flag(
        "PROXY_METRICS_TOKEN",
        "",
        "the bearer token for /metrics; without one only loopback may read it",
        secret=True,
    )
    cors_origins: str = flag(
        "PROXY_CORS_ORIGINS",
        "app://obsidian.md,capacitor://localhost,http://localhost",
        "the origins whose pages may call us, with commas between; one without a port stands for "
        "all ports, * for every origin",
    )
    ignore_client_system_prompt: bool = flag(
        "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT", False, "leave system and developer messages out"
    )
    base_instructions: Escaped = flag(
        "PROXY_BASE_INSTRUCTIONS", "", "base instructions to use in place of Codex's own"
    )
    parallel_tool_calls: ParallelCalls = flag(
        "PROXY_ENABLE_PARALLEL_TOOL_CALLS",
        "request",
        "request lets parallel_tool_calls decide; true allows many calls a turn, false one",
    )
    strict_params: bool = flag(
        "PROXY_STRICT_PARAMS",
        False,
        "refuse parameters that have no effect, as the header x-proxy-strict: 1 does",
    )
    requests_per_minute: int = flag(
        "PROXY_REQUESTS_PER_MINUTE",
        0,
        "how many turns a key may start a minute; 0: any number",
    )
    concurrency: int = flag(
        "PROXY_CONCURRENCY", 256, "how many turns run at once; more wait in a fair queue"
    )
    concurrency_per_key: int = flag(
        "PROXY_CONCURRENCY_PER_KEY", 64, "how many of them one key may have"
    )
    queue_size: int = flag("PROXY_QUEUE_SIZE", 256, "how many requests may wait for their turn")
    queue_timeout: float = flag(
        "PROXY_QUEUE_TIMEOUT_S", 30.0, "how long a request waits for its turn"
    )
    body_limit_mb: float = flag(
        "PROXY_BODY_LIMIT_MB", 16.0, "the largest request body in MiB, after decompression"
    )
    read_timeout: float = flag(
        "PROXY_READ_TIMEOUT_S", 30.0, "how long a client may take to send its request"
    )
    write_timeout: float = flag(
        "PROXY_WRITE_TIMEOUT_S",
        60.0,
        "how long a client may take none of its answer that is ready before it is hung up on",
    )
    keep_alive: float = flag(
        "PROXY_KEEP_ALIVE_S", 60.0, "how long an idle connection is kept for the next request"
    )
    prime_window: float = flag(
        "PROXY_PRIME_WINDOW_S",
        2.0,
        "how long a stream waits for its first event, so that an early failure gets a status",
    )
    ping_interval: float = flag(
        "PROXY_PING_INTERVAL_S", 15.0, "how long a stream may be silent before a comment is sent"
    )
    store: str = flag(
        "PROXY_STORE",
        "~/.local/state/codex-sluice/responses.sqlite3",
        "where responses are kept for clients that come back to them; :memory: keeps them until "
        "the server ends, and `serve --demo` does so; several workers share a file for that, in "
        "/dev/shm or among the temporary files",
    )
    store_mb: float = flag(
        "PROXY_STORE_MB", 256.0, "how many megabytes of responses are kept; the oldest leave first"
    )
    store_days: float = flag("PROXY_STORE_DAYS", 30.0, "how long a response is kept")
    seal_key_file: str = flag(
        "PROXY_SEAL_KEY_FILE",
        "",
        "the key that compacted conversations are sealed with, made when there is none; by default "
        "seal.key beside the store",
    )
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
        "PROXY_SHUTDOWN_GRACE_S", 20.0, "how long running answers may take to end on SIGTERM"
    )
    log_format: LogFormat = flag(
        "PROXY_LOG_FORMAT", "auto", "auto writes for people on a terminal and JSON elsewhere"
    )
    log_level: LogLevel = flag("PROXY_LOG_LEVEL", "info", "what is worth a line")
    log_content: bool = flag(
        "PROXY_LOG_CONTENT", False, "write prompts, answers and arguments into the log"
    )
