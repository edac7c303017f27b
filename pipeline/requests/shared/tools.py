"""Function tools and the tool choice, for both APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import frozen

from pipeline.errors import refusal
from pipeline.requests.shared.structure import WrongError
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


# -- the choice ------------------------------------------------------------------------------------


@frozen
class Choice:
    """Whether tools are called, which one must be called, and which are allowed in this turn."""

    mode: Mode = "auto"
    named: str | None = None
    allowed: tuple[str, ...] | None = None
    at: str = "tool_choice"
    """The path of its names in the request."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.allowed or () if self.named is None else (self.named,)


@frozen
class Offer:
    """The tools of one turn, and whether one must be called."""

    tools: tuple[Tool, ...]
    choice: ToolChoice


def chosen(tools: Mapping[str, Tool], choice: Choice) -> Offer:
    """Combine tools, keyed by name, with the choice among them.

    ProxyError if the choice names an unknown tool or there is none to call.
    """
    for name in choice.names:
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise refusal(
                choice.at, f"is {name!r:.150}, which is not declared; the tools are: {known:.500}"
            )
    if choice.allowed is not None:
        allowed = frozenset(choice.allowed)
        tools = {name: tool for name, tool in tools.items() if name in allowed}
    if choice.mode == "required" and not tools:
        raise refusal(choice.at, "requires a call, but there is no function to call; send tools")
    named = None if choice.named is None else NamedTool(choice.named)
    return Offer(tuple(tools.values()), named or choice.mode)
