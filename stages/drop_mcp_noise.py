"""Drops what the backend does with tools of its own, MCP servers above all: no client asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pipeline.events import BackendNotice, Event, ToolCall, ToolCallFragment, ToolOutput
from pipeline.formats.codex_tools import BACKEND_TOOLS
from pipeline.stage import Stage
from pipeline.turn import Turn

_OWN_SPACE: Final = re.compile(r"mcp__|web\Z")
"""Where Codex keeps the tools that an operator switched on: MCP servers', and its web search."""
OWN_CALL: Final = "the backend's own MCP call"
# Codex writes: resources/list failed: unknown MCP server 'obsidian'
_MCP_FAILURE: Final = re.compile(
    r"(resources/(templates/)?(list|read)|tools/(list|call)) failed:|unknown MCP server\b"
)


class DropMcpNoise(Stage):
    """Calls of the backend's own MCP tools, their outputs and MCP start-up never pass.

    A client that declares a tool of the same name gets its calls.
    """

    wants = frozenset({ToolCall, ToolCallFragment, ToolOutput, BackendNotice})

    def __init__(self) -> None:
        super().__init__()
        self._own_tools = BACKEND_TOOLS
        self._declared: frozenset[str] = frozenset()
        self._dropped_calls: set[str] = set()

    def begin(self, turn: Turn) -> None:
        self._declared = turn.tool_names
        self._own_tools = BACKEND_TOOLS - turn.tool_names

    def _own(self, call: ToolCall) -> bool:
        """Whether the backend answers a call itself: of its own tools, or in a space of its own."""
        if call.name in self._declared:
            return False
        if call.name in self._own_tools or call.name.startswith("mcp__"):
            return True
        return bool(_OWN_SPACE.match(call.namespace or ""))

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case ToolCall() if self._own(event):
                self._dropped_calls.add(event.call_id)
                return self.drop(event, OWN_CALL)
            case ToolCallFragment() if event.name in self._own_tools:
                # The aggregator drops these: it knows the pieces that came before the name.
                self._dropped_calls.add(event.call_id)
                return (event,)
            case ToolOutput() if event.call_id in self._dropped_calls:
                return self.drop(event, "the output of the backend's own MCP call")
            case ToolOutput() if _MCP_FAILURE.match(event.output):
                return self.drop(event, "a phantom MCP failure")
            case BackendNotice():
                return self.drop(event, "the backend talks about itself")
            case _:
                return (event,)
