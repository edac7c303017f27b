"""Tool names that Codex keeps for itself, under aliases that nobody outside sees."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

RESERVED: Final = frozenset(
    {
        "apply_patch",
        "create_goal",
        "exec_command",
        "get_goal",
        "list_mcp_resource_templates",
        "list_mcp_resources",
        "local_shell",
        "read_mcp_resource",
        "request_user_input",
        "shell",
        "shell_command",
        "update_goal",
        "update_plan",
        "view_image",
        "web_search",
        "write_stdin",
    }
)
"""Dynamic tools of these names are silently dropped by Codex: the model never sees them."""
_REFUSED: Final = re.compile(r"mcp__|.*[^a-zA-Z0-9_-]", re.DOTALL)
"""Names that Codex refuses outright: those of its own MCP tools, and ones with other characters."""


class Aliases:
    """A reversible renaming of one request's tools: no two names meet, none is Codex's own."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        taken = set(names) | RESERVED
        self._alias: dict[str, str] = {}
        for name in names:
            if name in RESERVED or _REFUSED.match(name):
                alias = "client_" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)
                while alias in taken:
                    alias = f"client_{alias}"
                taken.add(alias)
                self._alias[name] = alias
        self._name = {alias: name for name, alias in self._alias.items()}

    def to_backend(self, name: str) -> str:
        return self._alias.get(name, name)

    def to_client(self, name: str) -> str:
        return self._name.get(name, name)
