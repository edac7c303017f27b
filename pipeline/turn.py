"""A client's request, independent of the API that it came through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import evolve, field, frozen

from pipeline.loose_json import Json, as_json, as_list, text_of

OutputMode: TypeAlias = Literal["auto", "openai-json", "obsidian-xml"]
ToolKind: TypeAlias = Literal["function", "custom"]
"""A custom tool takes free text; for the backend it is a function of one string."""


@frozen
class Tool:
    """A tool that the client declared and runs."""

    name: str
    parameters: Mapping[str, Any] = field(factory=dict[str, Any])
    description: str = ""
    strict: bool | None = None
    """Whether calls must follow the schema exactly; None leaves it to the backend."""
    kind: ToolKind = "function"
    namespace: str | None = None
    """The namespace that the client declared it in; `name` is then made of both, and unique."""
    own_name: str = ""
    """The client's name for it within the namespace, where that is not `name`."""

    def parameter_types(self, parameter: str) -> frozenset[str]:
        """The JSON types the tool's schema allows for a parameter; empty when it does not say."""
        schema = as_json(as_json(self.parameters.get("properties")).get(parameter))
        types: set[str] = set()
        for part in (schema, *as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))):
            declared = as_json(part).get("type")
            types.update(t for t in (declared, *as_list(declared)) if isinstance(t, str))
        return frozenset(types)


@frozen
class NamedTool:
    """The choice of one tool, which must be called."""

    name: str


@frozen
class OutputSchema:
    """The JSON schema that the answer must follow."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Whether the schema must be enforced; None leaves it to the backend."""


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
"""Whether the model may, must not or must call a tool, or which one it must call."""


@frozen
class Turn:
    """One request for one answer.

    `items` is the whole conversation in order, as items of the Responses API.
    """

    model: str = "codex"
    instructions: str = ""
    items: tuple[Json, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    effort: str | None = None
    summary: str | None = None
    output_schema: OutputSchema | None = None
    base_instructions: str | None = None
    parallel_tool_calls: bool = True
    legacy_functions: bool = False
    include_usage: bool = False
    output_mode: OutputMode | None = None
    stream: bool | None = None
    stop: tuple[str, ...] = ()
    """Stop sequences: the text ends before the first of these."""
    max_tool_calls: int | None = None
    """The most calls to forward; None leaves it to the operator."""
    verbosity: str | None = None
    """How much the model says, where the backend supports it."""
    owner: str = ""
    """The caller: only this caller can reach what is stored of the turn."""
    request_id: str = ""
    """The id of the HTTP request."""
    prompt_cache_key: str | None = None
    """The upstream's key for caching prompts with the same beginning, where it supports one."""
    seed: str = field(default="", eq=False)
    """Seed of the ids generated for its calls; not part of the request."""

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model may call in this turn."""
        match self.tool_choice:
            case "none":
                return ()
            case NamedTool(name):
                return tuple(tool for tool in self.tools if tool.name == name)
            case _:
                return self.tools

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids of the conversation's calls and outputs."""
        return frozenset(text_of(item.get("call_id")) for item in self.items)

    def for_choice(self, number: int) -> Turn:
        """The turn of one of several choices: the same, with different ids for its calls."""
        return evolve(self, seed=f"{self.seed}#{number}") if number else self

    @property
    def one_call_only(self) -> bool:
        """Whether the answer may have only one call."""
        return self.legacy_functions or not self.parallel_tool_calls
