"""Where the app-servers are, and what a child of ours may do."""

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
    """Where the app-servers are, and what a child of ours may do, as an operator writes it."""

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
    shared: tuple[AppServer, ...] = ()
    """App-servers that another process of ours runs, confined as these options say."""
    workspace: Path | None = None
    """The empty folder that turns run in; without one, it is made."""
    bounds: Bounds = Factory(Bounds)
    patience: Patience = Factory(Patience)
    keep: KeepOptions = Factory(KeepOptions)
