"""What the items of a Responses request's input are, once they are checked."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from attrs import frozen

from pipeline.loose_json import Json
from pipeline.requests.responses.tools import Declared
from pipeline.requests.shared.parts import Content
from pipeline.requests.shared.structure import WrongError

TOOL_FAILED: Final = "[the tool call failed]\n"
"""What the model reads before the output of a tool that failed."""
MADE_UP: Final = "item_"
"""How ids begin that are given here to items without one. OpenAI opens sealed reasoning under its
own id, or without any, but under no other."""


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
    success: bool = True

    def told(self) -> str | list[Json]:
        """The output as an item has it. An item cannot say that a tool failed, so words do."""
        said = self.content.said("input_text")
        if self.success:
            return said
        if isinstance(said, str):
            return TOOL_FAILED + said
        return [{"type": "input_text", "text": TOOL_FAILED}, *said]


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
        own = self.id is not None and not self.id.startswith(MADE_UP)
        item: dict[str, Any] = {"type": "reasoning"} | ({"id": self.id} if own else {})
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
