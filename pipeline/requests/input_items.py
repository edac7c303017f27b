"""The items of a Responses request's input, each checked by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from attrs import frozen

from pipeline.custom_tools import to_arguments
from pipeline.loose_json import Json, is_json, is_list
from pipeline.requests.declared_tools import Declared
from pipeline.requests.parts import Content
from pipeline.requests.structure import WrongError, exactly, made, structured, structures, wanted

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
"""What tools of OpenAI's servers left behind. No backend here can read it, and most refuse it."""


@frozen
class Said:
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content = Content()
    phase: Literal["commentary", "partial_answer", "final_answer"] | None = None

    def __attrs_post_init__(self) -> None:
        if self.role != "assistant" and self.content.value is None:
            raise WrongError("is missing; it must be a string or an array of parts", ".content")
        if self.role == "user" and self.content.value == ():
            raise WrongError("is empty; it must have at least one part", ".content")
        if self.role != "user" and self.content.pictures:
            raise WrongError(
                f"holds a picture, which the {self.role} cannot send; send it as the user",
                ".content",
            )


@frozen
class Called:
    """A call of a tool, whatever kind of tool it was."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise WrongError("is empty; it must be the name of the tool", ".name")
        if not self.call_id:
            raise WrongError("is empty; it must be the id that the call was made with", ".call_id")


@frozen
class Output:
    """What a tool gave back."""

    content: Content


@frozen
class Answered:
    """The output of a call."""

    call_id: str
    output: Output


@frozen
class _Words:
    text: str


@frozen
class Thought:
    """The model's reasoning, sealed or open; a summary alone is nothing that a model can read."""

    summary: tuple[_Words, ...] = ()
    content: tuple[_Words, ...] | None = None
    encrypted_content: str | None = None
    id: str | None = None

    def item(self) -> Json | None:
        if not self.encrypted_content and not self.content:
            return None
        item: dict[str, Any] = {"type": "reasoning"} | ({"id": self.id} if self.id else {})
        item["summary"] = [{"type": "summary_text", "text": one.text} for one in self.summary]
        if self.content:
            item["content"] = [{"type": "reasoning_text", "text": one.text} for one in self.content]
        if self.encrypted_content:
            item["encrypted_content"] = self.encrypted_content
        return item


@frozen
class Compaction:
    """What a conversation was shortened to, sealed."""

    encrypted_content: str


@frozen
class Trigger:
    """The wish that the conversation before it be shortened."""


@frozen
class Reference:
    """An item that the server has."""

    id: str


@frozen
class MoreTools:
    """Tools that are declared in the middle of a conversation."""

    tools: tuple[Declared, ...] = ()


@frozen
class _Effort:
    effort: str | None = None


@frozen
class Update:
    """How the model shall think from here on."""

    reasoning: _Effort | None = None
    text: dict[str, Any] | None = None


@frozen
class LeftOut:
    """Something that no backend here can read."""

    type: str


What: TypeAlias = (
    Said
    | Called
    | Answered
    | Thought
    | Compaction
    | Trigger
    | Reference
    | MoreTools
    | Update
    | LeftOut
)


@frozen
class Item:
    """One item, as it was given and as what it is."""

    given: Json
    what: What
    opened: tuple[What, ...] | None = None
    """What it stands for, where that is known by now."""

    @property
    def meant(self) -> tuple[What, ...]:
        return (self.what,) if self.opened is None else self.opened


@frozen
class Input:
    """What was given as the input: a string is one message of the user's."""

    items: tuple[Item, ...] = ()


def structured_items(values: Sequence[Json]) -> tuple[Item, ...]:
    """Items from elsewhere than the request; ProxyError if one cannot be read."""
    return structured([*values], Input).items


# -- as they are sent ------------------------------------------------------------------------------


@frozen
class _CustomCall:
    call_id: str
    name: str
    input: str
    namespace: str | None = None

    def what(self) -> Called:
        return Called(self.call_id, self.name, to_arguments(self.input), self.namespace)


@frozen
class _AgentMessage:
    """What one agent of a team tells another. Nobody here has sealed what is in it."""

    content: tuple[dict[str, Any], ...] = ()
    author: str | None = None
    recipient: str | None = None

    def what(self) -> Said:
        texts = [part.get("text", part.get("encrypted_content")) for part in self.content]
        words = "\n".join(text for text in texts if isinstance(text, str))
        return Said("user", Content(f"[from {self.author} to {self.recipient}]\n{words}"))


@frozen
class _ShellCall:
    """A call of a tool that is no function to OpenAI, and one to everybody else."""

    call_id: str | None = None
    id: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None

    def what(self, kind: str) -> Called:
        arguments = msgspec.json.encode(self.action or self.operation or {}).decode()
        return Called(_call_id(self.call_id, self.id), kind.removesuffix("_call"), arguments)


@frozen
class _ShellOutput:
    """What such a tool gave back: words, or something with words in it."""

    output: object = None
    call_id: str | None = None
    id: str | None = None
    status: str | None = None

    def what(self) -> Answered:
        output = self.status or "" if self.output is None else self.output
        words = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        return Answered(_call_id(self.call_id, self.id), Output(Content(words)))


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


def _kind(value: Json) -> object:
    """The type of an item. Messages often come without, and so may references."""
    kind = value.get("type")
    if kind is not None:
        return kind
    if "role" in value:
        return "message"
    if "id" in value:
        return "item_reference"
    raise WrongError("is missing", ".type")


@structures(Item)
def _item(value: object) -> Item:
    fields: Json = exactly(dict, value)
    kind = exactly_text(_kind(fields))
    if kind in HOSTED:
        return Item(fields, LeftOut(kind))
    if kind in _SHELL_CALLS:
        return Item(fields, made(fields, _ShellCall).what(kind))
    if kind in _REWRITTEN:
        return Item(fields, _REWRITTEN[kind](fields))
    if kind not in _PLAIN:
        raise WrongError(
            f'is "{kind:.80}", an item that cannot be read here; leave it out', ".type"
        )
    return Item(fields, made(fields, _PLAIN[kind]))


def exactly_text(kind: object) -> str:
    try:
        return str(exactly(str, kind))
    except WrongError as error:
        raise WrongError(error.problem, ".type") from None


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
    """Words, parts, or the older form of a failure: {content, success}."""
    if is_json(value):
        for name in ("content", "content_items"):
            if isinstance(value.get(name), str | list):
                try:
                    return Output(made(value[name], Content))
                except WrongError as error:
                    raise WrongError(error.problem, f".{name}{error.at}") from None
        raise WrongError("is missing; it must be a string or an array of parts", ".content")
    if value is None:
        raise wanted("a string, an array of parts or an object with content", value)
    return Output(made(value, Content))
