"""Where turns run, and what a Codex of ours may do."""

from __future__ import annotations

from functools import partial

from attrs import frozen

from pipeline import flags

flag = partial(flags.flag, group="backend")


@frozen(slots=False)
class BackendFlags:
    """The app-servers, their bounds, and what is written down of their turns."""

    backend: str = flag(
        "PROXY_BACKEND",
        "",
        "the address of a Responses API to use instead of an app-server, such as "
        "https://host/v1/responses",
    )
    backend_api_key: str = flag("PROXY_BACKEND_API_KEY", "", "the key of that API", secret=True)
    codex_app_server: str = flag(
        "CODEX_APP_SERVER",
        "stdio",
        "where the app-server is: stdio starts one; ws://, wss:// and unix:// addresses, several "
        "with commas between, are a pool",
    )
    codex_bin: str = flag(
        "CODEX_BIN",
        "",
        "the Codex to start; else the one on the PATH, else the one that came with this project",
    )
    codex_home: str = flag(
        "CODEX_HOME",
        "",
        "the folder with the Codex login to use, such as ~/.codex; else an empty one is made",
    )
    codex_token: str = flag(
        "CODEX_APP_SERVER_TOKEN",
        "",
        "the capability token of a remote app-server",
        secret=True,
    )
    codex_token_file: str = flag(
        "CODEX_APP_SERVER_TOKEN_FILE",
        "",
        "a file that holds that token",
    )
    codex_web_search: bool = flag("CODEX_WEB_SEARCH", False, "let Codex search the web by itself")
    codex_view_image: bool = flag(
        "CODEX_VIEW_IMAGE", False, "let Codex look at image files by itself"
    )
    codex_mcp_servers: bool = flag(
        "CODEX_MCP_SERVERS",
        False,
        "let Codex run the MCP servers that its own configuration names; their tools are listed at "
        "/v1/mcp/tools, and offered to the model only with PROXY_EXPOSE_MCP_TOOLS",
    )
    codex_first_event_timeout: float = flag(
        "CODEX_FIRST_EVENT_TIMEOUT_S",
        120.0,
        "how long a turn may take to say its first word",
    )
    codex_idle_timeout: float = flag(
        "CODEX_IDLE_TIMEOUT_S", 300.0, "how long it may then be silent"
    )
    codex_turn_timeout: float = flag(
        "CODEX_TURN_TIMEOUT_S", 3600.0, "how long a turn may take in all"
    )
    codex_hold_turns: bool = flag(
        "CODEX_HOLD_TURNS",
        True,
        "keep a turn open while the client runs its tools, and continue it with their outputs",
    )
    codex_hold_turns_max: int = flag("CODEX_HOLD_TURNS_MAX", 64, "how many turns are held at once")
    codex_hold_turns_time: float = flag("CODEX_HOLD_TURNS_S", 600.0, "how long a turn is held")
    codex_recycle_turns: int = flag(
        "CODEX_RECYCLE_TURNS",
        2000,
        "replace the app-server after so many turns; 0 means never",
    )
    codex_recycle_mb: int = flag(
        "CODEX_RECYCLE_MB",
        1500,
        "replace the app-server when it has grown to so many megabytes; 0 means never",
    )
    record_dir: str = flag(
        "PIPELINE_RECORD_DIR",
        "",
        "write every turn there as a transcript that replay reads; it holds prompts and answers",
    )
    record_redact: bool = flag(
        "PIPELINE_RECORD_REDACT",
        False,
        "take keys and tokens out of these transcripts",
    )
