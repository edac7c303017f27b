"""Aliases for tool names that Codex reserves or refuses; clients never see the aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pipeline.formats.codex_tools import RESERVED

_REFUSED: Final = re.compile(r"mcp__|.*[^a-zA-Z0-9_-]", re.DOTALL)
"""Names that Codex refuses: those of its own MCP tools, and any with other characters."""


class Aliases:
    """A reversible renaming of one request's tools: no duplicates, none reserved by Codex."""

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
