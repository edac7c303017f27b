"""Codex's own list of models, without the tools that it would give them.

Disabling features is not enough: a model's entry in the catalog adds tools, such as a JavaScript
interpreter (`tool_mode`), `apply_patch`, or multiple agents.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import trio

from pipeline.loose_json import as_json, as_list, is_json

PATIENCE: Final = 20.0
REMOVED: Final = (
    "apply_patch_tool_type",
    "include_apps_usage_instructions",
    "include_plugin_usage_instructions",
    "include_skills_usage_instructions",
    "multi_agent_version",
    "tool_mode",
)


def without_tools(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model's entry without everything that gives it a tool or mentions one."""
    kept = {key: value for key, value in model.items() if key not in REMOVED}
    return kept | {"experimental_supported_tools": [], "supports_search_tool": False}


async def write_catalog(
    codex: str, environment: Mapping[str, str], target: Path, *, refresh: bool
) -> Path | None:
    """Write the catalog without tools to a file; None if this Codex has no catalog.

    `refresh` first fetches the newest models from the upstream, which requires a login.
    """
    for flags in ([], ["--bundled"]) if refresh else (["--bundled"],):
        models = await _models([codex, "debug", "models", *flags], environment)
        if models:
            # Replaced atomically: an older child reads it at the start of every thread.
            aside = trio.Path(f"{target}.{uuid4().hex}")
            await aside.write_bytes(msgspec.json.encode({"models": models}))
            await aside.replace(target)
            return target
    return None


async def _models(command: list[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    with trio.move_on_after(PATIENCE):
        asked = await trio.run_process(
            command,
            env=dict(environment),
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        try:
            catalog = as_json(msgspec.json.decode(asked.stdout))
        except msgspec.DecodeError:
            return []
        return [without_tools(m) for m in as_list(catalog.get("models")) if is_json(m)]
    return []
