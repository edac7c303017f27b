"""Confines a Codex: no tools of its own, no files, almost none of the environment."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from attrs import Factory, frozen

from sources.app_server.protocol.mcp_servers import switched_off

BUILT_IN_FEATURES: Final = (
    "apply_patch_freeform",
    "apps",
    "browser_use",
    "code_mode",
    "code_mode_host",
    "code_mode_only",
    "collaboration_modes",
    "computer_use",
    "goals",
    "hooks",
    "image_generation",
    "memories",
    "multi_agent",
    "multi_agent_v2",
    "plugins",
    "shell_snapshot",
    "shell_tool",
    "skill_search",
    "sleep_tool",
    "tool_suggest",
    "unified_exec",
)
KEPT_VARIABLES: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""The variables that a child needs to start and to reach its upstream; no keys or tokens."""


@frozen
class Confinement:
    """The folders of one child, and the features that are switched on."""

    home: Path
    workspace: Path
    web_search: bool = False
    view_image: bool = False
    mcp_servers: bool = False
    overrides: Mapping[str, str] = Factory(dict[str, str])

    def command(
        self,
        codex: str,
        *,
        listen: str = "",
        catalog: Path | None = None,
        known_servers: Collection[str] = (),
    ) -> list[str]:
        """The command line, with a list of models that have no tools.

        `known_servers` are the MCP servers that it would otherwise use.
        """
        settings = {f"features.{name}": "false" for name in BUILT_IN_FEATURES}
        settings |= {
            "features.view_image": _toml(self.view_image),
            "features.view_image_tool": _toml(self.view_image),
            "tools.view_image": _toml(self.view_image),
            "web_search": '"live"' if self.web_search else '"disabled"',
            # Newer models search with a tool of Codex's instead of the API's.
            "features.standalone_web_search": _toml(self.web_search),
            "tools.experimental_request_user_input": "{enabled=false}",
            "skills.include_instructions": "false",
            "include_environment_context": "false",
            "include_permissions_instructions": "false",
            "include_apps_instructions": "false",
            "include_collaboration_mode_instructions": "false",
            "include_apply_patch_tool": "false",
            "project_doc_max_bytes": "0",
            "analytics.enabled": "false",
        }
        if not self.mcp_servers:
            settings["mcp_servers"] = switched_off(known_servers)
        if catalog is not None:
            settings["model_catalog_json"] = f'"{catalog}"'
        settings |= self.overrides
        chosen = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [codex, *chosen, "app-server", *(["--listen", listen] if listen else [])]

    def environment(self, outer: Mapping[str, str] | None = None) -> dict[str, str]:
        """The child's complete environment."""
        outer = os.environ if outer is None else outer
        kept = {name: outer[name] for name in KEPT_VARIABLES if name in outer}
        return kept | {"CODEX_HOME": str(self.home), "HOME": str(self.home)}


def _toml(value: bool) -> str:
    return "true" if value else "false"
