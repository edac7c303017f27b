"""Checks and structures each item of a Responses request's input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from attrs import frozen

from pipeline.formats.custom_tools import to_arguments
from pipeline.loose_json import Json, is_json, is_list
from pipeline.requests.responses.items import (
    Answered,
    Called,
    Compaction,
    Input,
    Item,
    LeftOut,
    MoreTools,
    Output,
    Reference,
    Said,
    Thought,
    Trigger,
    Update,
    What,
)
from pipeline.requests.shared.parts import Content
from pipeline.requests.shared.structure import (
    WrongError,
    exactly,
    made,
    structured,
    structures,
    wanted,
)

HOSTED: Final = frozenset(
    {
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of tools that OpenAI's servers run. No backend here can read them, and most reject them."""


def structured_items(values: Sequence[Json]) -> tuple[Item, ...]:
    """Structure items that are not from the request; ProxyError if one cannot be read."""
    return structured([*values], Input).items


@frozen
class _CustomCall:
    """A call of a tool that takes free text."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None

    def what(self) -> Called:
        arguments = _written(self.input, to_arguments)
        return Called(self.call_id, self.name, arguments, self.namespace)


@frozen
class _AgentMessage:
    """A message between agents. Its content is plain text, whatever the field is called."""

    content: tuple[dict[str, Any], ...] = ()
    author: str | None = None
    recipient: str | None = None

    def what(self) -> Said:
        texts = [part.get("text", part.get("encrypted_content")) for part in self.content]
        text = "\n".join(text for text in texts if isinstance(text, str))
        return Said("user", Content(f"[from {self.author} to {self.recipient}]\n{text}"))


@frozen
class _ShellCall:
    """A call of a built-in tool of OpenAI's; for other backends it is a function call."""

    call_id: str | None = None
    id: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None

    def what(self, kind: str) -> Called:
        arguments = _written(self.action or self.operation or {})
        return Called(_call_id(self.call_id, self.id), kind.removesuffix("_call"), arguments)


@frozen
class _ShellOutput:
    """The output of such a tool: text, or a value that is sent as JSON."""

    output: Any = None
    call_id: str | None = None
    id: str | None = None
    status: str | None = None

    def what(self) -> Answered:
        output = self.status or "" if self.output is None else self.output
        text = output if isinstance(output, str) else _written(output)
        return Answered(_call_id(self.call_id, self.id), Output(Content(text)))


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _written(value: Any, write: Callable[[Any], str] = _as_json) -> str:
    try:
        return write(value)
    except (UnicodeEncodeError, RecursionError):
        raise WrongError("has half of a surrogate pair, or too many levels of JSON") from None


def _call_id(call_id: str | None, item_id: str | None) -> str:
    if not (call_id or item_id):
        raise WrongError("is missing", ".call_id")
    return call_id or item_id or ""


_PLAIN: Final[dict[str, type[Any]]] = {
    "message": Said,
    "function_call": Called,
    "function_call_output": Answered,
    "custom_tool_call_output": Answered,
    "reasoning": Thought,
    "compaction": Compaction,
    "compaction_summary": Compaction,
    "context_compaction": Compaction,
    "compaction_trigger": Trigger,
    "item_reference": Reference,
    "additional_tools": MoreTools,
    "configuration_update": Update,
}
_SHELL_CALLS: Final = ("local_shell_call", "shell_call", "apply_patch_call")
_REWRITTEN: Final[dict[str, Callable[[Json], What]]] = {
    "custom_tool_call": lambda value: made(value, _CustomCall).what(),
    "agent_message": lambda value: made(value, _AgentMessage).what(),
    **{
        kind: lambda value: made(value, _ShellOutput).what()
        for kind in (f"{call}_output" for call in _SHELL_CALLS)
    },
}


def _kind(value: Json) -> str:
    """The type of an item. Messages and references may omit it."""
    kind = value.get("type")
    if isinstance(kind, str):
        return kind
    if kind is not None:
        raise WrongError(wanted("a string", kind).problem, ".type")
    if "role" in value:
        return "message"
    if "id" in value:
        return "item_reference"
    raise WrongError("is missing", ".type")


@structures(Item)
def _item(value: object) -> Item:
    fields: Json = exactly(dict, value)
    kind = _kind(fields)
    if kind in HOSTED:
        return Item(fields, LeftOut(kind))
    if kind in _SHELL_CALLS:
        return Item(fields, made(fields, _ShellCall).what(kind))
    if kind in _REWRITTEN:
        return Item(fields, _REWRITTEN[kind](fields))
    if kind not in _PLAIN:
        raise WrongError(
            f'is "{kind:.80}", an item type that is not supported; leave it out', ".type"
        )
    return Item(fields, made(fields, _PLAIN[kind]))


@structures(Input)
def _input(value: object) -> Input:
    if isinstance(value, str):
        message = {"type": "message", "role": "user", "content": value}
        return Input((made(message, Item),))
    if not is_list(value):
        raise wanted("a string or an array of items", value)
    return Input(made(value, tuple[Item, ...]))


@structures(Output)
def _output(value: object) -> Output:
    """Text, parts, or the older form of a failure: {content, success}."""
    if is_json(value):
        success = value.get("success", True)
        if success is not None and not isinstance(success, bool):
            raise WrongError(wanted("true or false", success).problem, ".success")
        for name in ("content", "content_items"):
            if isinstance(value.get(name), str | list):
                try:
                    return Output(made(value[name], Content), success is not False)
                except WrongError as error:
                    raise WrongError(error.problem, f".{name}{error.at}") from None
        raise WrongError("is missing; it must be a string or an array of parts", ".content")
    if value is None:
        raise wanted("a string, an array of parts or an object with content", value)
    return Output(made(value, Content))
