"""Options: where the app-servers are, and what those that this server starts may do."""

from __future__ import annotations

from pathlib import Path

from attrs import Factory, frozen

from pipeline.options import backend_flag as flag
from sources.app_server.process.patience import Patience
from sources.app_server.process.supervisor import AppServer
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.place import Bounds


@frozen(slots=False)
class CodexOptions:
    """The settings for app-servers."""

    codex_app_server: str = flag(
        "CODEX_APP_SERVER",
        "stdio",
        "the app-server: stdio starts one; or ws://, wss:// and unix:// addresses; several, "
        "separated by commas, form a pool",
    )
    codex_bin: str = flag(
        "CODEX_BIN",
        "",
        "the Codex to start; default: the one on the PATH, else the one of this project",
    )
    codex_home: str = flag(
        "CODEX_HOME",
        "",
        "the folder with the Codex login, such as ~/.codex; default: a new empty one",
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
        "a file with that token",
    )
    codex_web_search: bool = flag("CODEX_WEB_SEARCH", False, "let Codex itself search the web")
    codex_view_image: bool = flag("CODEX_VIEW_IMAGE", False, "let Codex itself open image files")
    codex_mcp_servers: bool = flag(
        "CODEX_MCP_SERVERS",
        False,
        "let Codex run the MCP servers of its own configuration; their tools are listed at "
        "/v1/mcp/tools, and offered to the model only with PROXY_EXPOSE_MCP_TOOLS",
    )


@frozen
class BackendOptions:
    """Where the app-servers are, and what those that this server starts may do."""

    addresses: tuple[str, ...] = ("stdio",)
    codex: str = ""
    home: Path | None = None
    """The CODEX_HOME with a login; without one, each child gets its own empty one."""
    token: str = ""
    web_search: bool = False
    view_image: bool = False
    mcp_servers: bool = False
    """Whether the MCP servers of its own configuration run and are listed."""
    mcp_tools: bool = False
    """Whether their tools are offered to the model."""
    overrides: dict[str, str] = Factory(dict[str, str])
    shared: tuple[AppServer, ...] = ()
    """App-servers that the supervisor process runs, confined as these options say."""
    workspace: Path | None = None
    """The empty folder that turns run in; without one, a new one."""
    bounds: Bounds = Factory(Bounds)
    patience: Patience = Factory(Patience)
    keep: KeepOptions = Factory(KeepOptions)
