"""The app-server requests for one Turn: thread, history, tools and the turn itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pipeline.formats.strict_schema import first_violation
from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.turn import NamedTool, Turn
from sources.app_server.protocol.capabilities import Capabilities
from sources.app_server.protocol.names import Aliases
from sources.app_server.protocol.prompts import (
    choice_prompt,
    flattened,
    form_prompt,
    item_images,
    tool_prompt,
)


class ThreadPlan:
    """Builds the requests for one Turn, for the features that the backend supports."""

    def __init__(
        self, turn: Turn, can: Capabilities, workspace: str, *, sees_files: bool = False
    ) -> None:
        self._turn = turn
        self._can = can
        self._workspace = workspace
        self._sees_files = sees_files
        form = turn.output_schema
        # Codex marks every schema as strict, and the model rejects one that is not in the subset.
        self._enforced = form is not None and first_violation(form.schema) is None
        self.aliases = Aliases(tool.name for tool in turn.tools if can.dynamic_tools)
        self.history_calls = frozenset(
            text_of(item.get("call_id"))
            for item in turn.items
            if item.get("type") == "function_call"
        )

    def thread_start(self, hidden_servers: Collection[str] = ()) -> Json:
        """The thread, with these MCP servers disabled; the backend must know each of them."""
        turn = self._turn
        params: dict[str, Any] = {
            "model": turn.model,
            "cwd": self._workspace,
            "approvalPolicy": "never",
            "sandbox": "read-only",
            "experimentalRawEvents": True,
        }
        if not self._sees_files:
            params["environments"] = []  # no files for any tool
        if turn.base_instructions is not None:
            params["baseInstructions"] = turn.base_instructions
        if instructions := self._instructions():
            params["developerInstructions"] = instructions
        if config := self._config(hidden_servers):
            params["config"] = config
        if turn.offered and self._can.dynamic_tools:
            params["dynamicTools"] = [
                {
                    "type": "function",
                    "name": self.aliases.to_backend(tool.name),
                    "description": tool.description,
                    "inputSchema": dict(tool.parameters) or {"type": "object", "properties": {}},
                }
                for tool in turn.offered
            ]
        return params

    def _config(self, hidden_servers: Collection[str]) -> Json:
        """The thread's overrides of the backend's configuration."""
        config: dict[str, Any] = {}
        if self._turn.verbosity is not None:
            config["model_verbosity"] = self._turn.verbosity
        if hidden_servers:
            config["mcp_servers"] = {name: {"enabled": False} for name in sorted(hidden_servers)}
        return config

    def injected(self) -> list[Json]:
        """The conversation as items, if the backend supports them."""
        if not self._can.inject_items:
            return []
        return [self._renamed(_in_parts(item)) for item in self._turn.items]

    def turn_start(self, thread: str) -> Json:
        turn = self._turn
        params: dict[str, Any] = {"threadId": thread, "input": self._input()}
        optional = {
            "model": turn.model,
            "effort": turn.effort,
            "summary": turn.summary,
        }
        if turn.output_schema is not None and self._enforced:
            params["outputSchema"] = turn.output_schema.schema
        return params | {key: value for key, value in optional.items() if value is not None}

    def _instructions(self) -> str:
        turn = self._turn
        parts = [turn.instructions]
        if turn.offered and not self._can.dynamic_tools:
            parts.append(tool_prompt(turn.offered))
        if turn.offered and turn.tool_choice != "auto":
            parts.append(choice_prompt(self._chosen()))
        if turn.output_schema is not None:
            parts.append(form_prompt(turn.output_schema, enforced=self._enforced))
        return "\n\n".join(part for part in parts if part)

    def _chosen(self) -> str | None:
        """The backend's name of the tool that must be called."""
        choice = self._turn.tool_choice
        return self.aliases.to_backend(choice.name) if isinstance(choice, NamedTool) else None

    def _input(self) -> list[Json]:
        if self._can.inject_items:
            return []
        words = flattened(self._turn.items)
        images = [url for item in self._turn.items for url in item_images(item)]
        said: list[Json] = [{"type": "text", "text": words}]
        return said + [{"type": "image", "url": url} for url in images]

    def _renamed(self, item: Json) -> Json:
        name = text_of(item.get("name"))
        if item.get("type") == "function_call" and self.aliases.to_backend(name) != name:
            return {**item, "name": self.aliases.to_backend(name)}
        return item


def _in_parts(item: Json) -> Json:
    """An item as the backend requires it: text in parts, images with a supported detail."""
    for content in ("content", "output"):
        if any(as_json(part).get("detail") == "low" for part in as_list(item.get(content))):
            item = {**item, content: [_in_detail(as_json(part)) for part in item[content]]}
    text = item.get("content")
    if item.get("type", "message") != "message" or not isinstance(text, str):
        return item
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {**item, "type": "message", "content": [{"type": kind, "text": text}]}


def _in_detail(part: Json) -> Json:
    """Codex does not support the detail `low`: it replaces such an image with a note."""
    return {**part, "detail": "auto"} if part.get("detail") == "low" else part


def to_client(message: Json, aliases: Aliases) -> Json:
    """A message with aliases replaced by the client's own tool names."""
    params = as_json(message.get("params"))
    item = as_json(params.get("item"))
    name = text_of(item.get("name"))
    tool = text_of(params.get("tool"))
    if name and aliases.to_client(name) != name:
        renamed = {**item, "name": aliases.to_client(name)}
        return {**message, "params": {**params, "item": renamed}}
    if tool and aliases.to_client(tool) != tool:
        return {**message, "params": {**params, "tool": aliases.to_client(tool)}}
    return message


def thread_id(result: Json) -> str:
    return text_of(as_json(result.get("thread")).get("id"))


def turn_id(result: Json) -> str:
    return text_of(as_json(result.get("turn")).get("id"))
