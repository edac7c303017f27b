"""The MCP servers of a Codex's own configuration: to disable each, or to list their tools.

An empty table on the command line disables none: Codex merges it with its configuration files.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import trio

from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.app_server.protocol.client import AppServerClient

PATIENCE: Final = 20.0
_OPTIONAL: Final = {
    "title": "title",
    "outputSchema": "output_schema",
    "annotations": "annotations",
}


def switched_off(names: Iterable[str]) -> str:
    """A TOML value for `mcp_servers` that disables all of these."""
    entries = (f"{msgspec.json.encode(name).decode()}={{enabled=false}}" for name in sorted(names))
    return f"{{{', '.join(entries)}}}"


async def configured_servers(
    codex: str, environment: Mapping[str, str], home: Path
) -> frozenset[str]:
    """The names of all MCP servers: those in its home, and others that only Codex itself finds.

    Those in its home are disabled while it lists them, so that it does not check them again.
    """
    named = await _named_by(trio.Path(home) / "config.toml")
    command = [codex, "-c", f"mcp_servers={switched_off(named)}", "mcp", "list", "--json"]
    with trio.move_on_after(PATIENCE):
        asked = await trio.run_process(
            command,
            env=dict(environment),
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        try:
            listed = as_list(msgspec.json.decode(asked.stdout))
        except msgspec.DecodeError:
            return named  # this Codex has no such command
        return named | {text_of(as_json(server).get("name")) for server in listed}
    return named


async def _named_by(config: trio.Path) -> frozenset[str]:
    try:
        settings = tomllib.loads(await config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()  # missing, or invalid, which Codex reports itself
    return frozenset(as_json(settings.get("mcp_servers")))


async def named_servers(client: AppServerClient) -> frozenset[str]:
    """The names of all MCP servers in a running app-server's configuration."""
    answer = await client.request("config/read", {})
    return frozenset(as_json(as_json(answer.get("config")).get("mcp_servers")))


def tools_of(servers: Iterable[object]) -> list[Json]:
    """The tools of the listed servers, in a stable order."""
    found = [tool for server in servers for tool in _tools(as_json(server))]
    return sorted(found, key=lambda tool: (tool["server"], tool["name"]))


def _tools(server: Json) -> Iterator[Json]:
    for key, value in as_json(server.get("tools")).items():
        listed = as_json(value)
        tool: dict[str, object] = {
            "server": text_of(server.get("name")),
            "name": text_of(listed.get("name")) or key,
            "description": text_of(listed.get("description")),
            "input_schema": as_json(listed.get("inputSchema")),
        }
        known = {name: listed.get(key) for key, name in _OPTIONAL.items()}
        yield tool | {key: value for key, value in known.items() if value is not None}
