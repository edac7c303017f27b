"""The MCP servers that a Codex would use of itself: to switch each off, or to list their tools.

An empty table on the command line switches off none: Codex merges it with what its files say.
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
    """A value for `mcp_servers`, in TOML, that leaves none of these in use."""
    entries = (f"{msgspec.json.encode(name).decode()}={{enabled=false}}" for name in sorted(names))
    return f"{{{', '.join(entries)}}}"


async def configured_servers(
    codex: str, environment: Mapping[str, str], home: Path
) -> frozenset[str]:
    """The names of all MCP servers: those of its home, and those that only Codex itself finds.

    What its home names is switched off already when it is asked: it need not look at it again.
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
            return named  # it has no such command
        return named | {text_of(as_json(server).get("name")) for server in listed}
    return named


async def _named_by(config: trio.Path) -> frozenset[str]:
    try:
        settings = tomllib.loads(await config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()  # there is none, or Codex will complain of it
    return frozenset(as_json(settings.get("mcp_servers")))


async def named_servers(client: AppServerClient) -> frozenset[str]:
    """The names of all MCP servers that a running app-server's configuration has now."""
    told = await client.request("config/read", {})
    return frozenset(as_json(as_json(told.get("config")).get("mcp_servers")))


def tools_of(servers: Iterable[object]) -> list[Json]:
    """The tools of servers as an app-server lists them, in an order that does not change."""
    found = [tool for server in servers for tool in _tools(as_json(server))]
    return sorted(found, key=lambda tool: (tool["server"], tool["name"]))


def _tools(server: Json) -> Iterator[Json]:
    for key, value in as_json(server.get("tools")).items():
        told = as_json(value)
        tool: dict[str, object] = {
            "server": text_of(server.get("name")),
            "name": text_of(told.get("name")) or key,
            "description": text_of(told.get("description")),
            "input_schema": as_json(told.get("inputSchema")),
        }
        known = {ours: told.get(theirs) for theirs, ours in _OPTIONAL.items()}
        yield tool | {key: value for key, value in known.items() if value is not None}
