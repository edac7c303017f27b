"""The tools that Codex has of its own."""

from __future__ import annotations

from typing import Final

BACKEND_TOOLS: Final = frozenset(
    {
        "list_mcp_resource_templates",
        "list_mcp_resources",
        "read_mcp_resource",
        "update_plan",
        "view_image",
    }
)
"""Codex 0.89 offers these to its model even with every tool switched off, and runs them itself."""
RESERVED: Final = BACKEND_TOOLS | {
    "apply_patch",
    "create_goal",
    "exec_command",
    "get_goal",
    "local_shell",
    "request_user_input",
    "shell",
    "shell_command",
    "update_goal",
    "web_search",
    "write_stdin",
}
"""Codex silently drops dynamic tools of these names: the model never sees them."""
