"""A Responses request's choice among its tools."""

from __future__ import annotations

from typing import Final, Literal

from attrs import frozen

from pipeline.loose_json import is_json
from pipeline.requests.responses.tools import Toolbox
from pipeline.requests.shared.structure import by_type, made, structures, wanted
from pipeline.requests.shared.tools import Choice, Mode

HOSTED_CHOICES: Final = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)


@frozen
class _Named:
    name: str
    namespace: str | None = None


@frozen
class _AllowedTool:
    type: str
    name: str | None = None
    namespace: str | None = None


@frozen
class _Allowed:
    tools: tuple[_AllowedTool, ...]
    mode: Literal["auto", "required"] = "auto"


@frozen
class _Hosted:
    """A tool that OpenAI's servers would run."""


@frozen
class RequestedChoice:
    """The tool choice in the client's names: whether, which one, and which are allowed."""

    mode: Mode = "auto"
    named: _Named | None = None
    allowed: tuple[_AllowedTool, ...] | None = None
    hosted: bool = False
    """Whether it requests a hosted tool, which is not available: then the model chooses."""

    def among(self, tools: Toolbox) -> Choice:
        """The same choice in the backend's names."""
        if self.named is not None:
            name = tools.name_of(self.named.name, self.named.namespace)
            return Choice("required", named=name, at="tool_choice.name")
        if self.allowed is None:
            return Choice(self.mode)
        names: list[str] = []
        for tool in self.allowed:
            if tool.type == "namespace" and tool.name is not None:
                names += tools.within(tool.name) or [tool.name]
            elif tool.type in ("function", "custom") and tool.name is not None:
                names.append(tools.name_of(tool.name, tool.namespace))
        return Choice(self.mode, allowed=tuple(names), at="tool_choice.tools")


@structures(RequestedChoice)
def _requested_choice(value: object) -> RequestedChoice:
    if isinstance(value, str):
        return RequestedChoice(made(value, Mode))
    if not is_json(value):
        raise wanted('"none", "auto", "required" or an object', value)
    forms = {"function": _Named, "custom": _Named, "allowed_tools": _Allowed}
    match by_type(value, forms | dict.fromkeys(HOSTED_CHOICES, _Hosted)):
        case _Named() as named:
            return RequestedChoice("required", named)
        case _Allowed(tools, mode):
            return RequestedChoice(mode, allowed=tools)
        case _:
            return RequestedChoice(hosted=True)
