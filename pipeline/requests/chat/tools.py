"""The tools of a chat request, and its choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from pipeline.errors import refusal
from pipeline.loose_json import is_json
from pipeline.requests.shared.structure import WrongError, by_type, made, structures, wanted
from pipeline.requests.shared.tools import Choice, FunctionSpec, Mode, Offer, chosen
from pipeline.turn import Tool


@frozen
class ToolSpec:
    """A tool of any type; only functions can be called."""

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


def offer(declared: Mapping[str, FunctionSpec], choice: Choice) -> Offer:
    """Combine functions, keyed by the path of their names, with the choice.

    ProxyError if the choice names no such function.
    """
    tools: dict[str, Tool] = {}
    for place, spec in declared.items():
        if spec.name in tools:
            raise refusal(place, f"is {spec.name!r}, which another tool has; names must differ")
        tools[spec.name] = spec.as_tool()
    return chosen(tools, choice)
