"""Functions as tools, and the choice among them, as a chat request has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import frozen

from pipeline.loose_json import is_json
from pipeline.requests.structure import (
    WrongError,
    by_type,
    made,
    refusal,
    structures,
    wanted,
)
from pipeline.turn import NamedTool, Tool, ToolChoice

Mode: TypeAlias = Literal["none", "auto", "required"]
LONGEST_NAME = 128


def check_name(name: str) -> None:
    """Raise WrongError for a name that is empty or too long."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise WrongError(f"must have from 1 to {LONGEST_NAME} characters", ".name")


@frozen
class FunctionSpec:
    """A function as the client declares it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def __attrs_post_init__(self) -> None:
        check_name(self.name)

    def as_tool(self) -> Tool:
        return Tool(self.name, self.parameters or {}, self.description or "", self.strict)


@frozen
class ToolSpec:
    """A tool of any type; only functions can be called here."""

    type: str = "function"
    function: FunctionSpec | None = None

    def __attrs_post_init__(self) -> None:
        if self.type == "function" and self.function is None:
            raise WrongError("is missing; it must be an object with a name", ".function")

    @property
    def is_function(self) -> bool:
        return self.type == "function"


@frozen
class NamedFunction:
    """The name of a declared function."""

    name: str


# -- the choice ------------------------------------------------------------------------------------


@frozen
class Choice:
    """Whether tools are called, which one must be, and which are there for this turn."""

    mode: Mode = "auto"
    named: str | None = None
    allowed: tuple[str, ...] | None = None
    at: str = "tool_choice"
    """Where in the request its names stand."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.allowed or () if self.named is None else (self.named,)


@frozen
class LegacyChoice:
    """The choice among `functions`."""

    choice: Choice = Choice(at="function_call")


@frozen
class _Function:
    function: NamedFunction


@frozen
class _AllowedTool:
    type: str = "function"
    function: NamedFunction | None = None


@frozen
class _Allowed:
    tools: tuple[_AllowedTool, ...]
    mode: Literal["auto", "required"] = "auto"


@frozen
class _AllowedTools:
    allowed_tools: _Allowed


@structures(Choice)
def _choice(value: object) -> Choice:
    if isinstance(value, str):
        return Choice(made(value, Mode))
    if not is_json(value):
        raise wanted('"none", "auto", "required" or an object', value)
    match by_type(value, {"function": _Function, "allowed_tools": _AllowedTools}):
        case _Function(function):
            return Choice("required", named=function.name, at="tool_choice.function.name")
        case some:
            tools = some.allowed_tools.tools
            names = tuple(tool.function.name for tool in tools if tool.function is not None)
            return Choice(some.allowed_tools.mode, None, names, "tool_choice.allowed_tools.tools")


@structures(LegacyChoice)
def _legacy_choice(value: object) -> LegacyChoice:
    if is_json(value):
        named = made(value, NamedFunction)
        return LegacyChoice(Choice("required", named=named.name, at="function_call.name"))
    if not isinstance(value, str):
        raise wanted('"none", "auto" or an object with a name', value)
    mode: Mode = made(value, Literal["none", "auto"])
    return LegacyChoice(Choice(mode, at="function_call"))


@frozen
class Offer:
    """The tools of one turn, and whether one must be called."""

    tools: tuple[Tool, ...]
    choice: ToolChoice


def offer(declared: Mapping[str, FunctionSpec], choice: Choice) -> Offer:
    """Put functions, by where their names stand, and the choice together.

    ProxyError where they do not fit.
    """
    tools: dict[str, Tool] = {}
    for place, spec in declared.items():
        if spec.name in tools:
            raise refusal(place, f"is {spec.name!r}, which another one has; names must differ")
        tools[spec.name] = spec.as_tool()
    return chosen(tools, choice)


def chosen(tools: Mapping[str, Tool], choice: Choice) -> Offer:
    """Put tools, by their names, and the choice among them together.

    ProxyError where they do not fit.
    """
    for name in choice.names:
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise refusal(
                choice.at, f"is {name!r:.150}, which is not declared; there are: {known:.500}"
            )
    if choice.allowed is not None:
        allowed = frozenset(choice.allowed)
        tools = {name: tool for name, tool in tools.items() if name in allowed}
    if choice.mode == "required" and not tools:
        raise refusal(choice.at, "asks for a call, but there is no function to call; send tools")
    named = None if choice.named is None else NamedTool(choice.named)
    return Offer(tuple(tools.values()), named or choice.mode)
