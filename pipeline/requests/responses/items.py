"""The items of a Responses request's input, after they are checked."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from attrs import frozen

from pipeline.loose_json import Json
from pipeline.requests.responses.tools import Declared
from pipeline.requests.shared.parts import Content
from pipeline.requests.shared.structure import WrongError

TOOL_FAILED: Final = "[the tool call failed]\n"
"""Put before the output of a failed tool, for the model."""
MADE_UP: Final = "item_"
"""The prefix of ids that the server makes for items without one. OpenAI decrypts reasoning under
its own id or without one, but under no other."""


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
        if self.role != "user" and self.content.images:
            raise WrongError(
                f"contains an image, which the role {self.role} cannot send; send it as the user",
                ".content",
            )


@frozen
class Called:
    """A call of any kind of tool."""

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
    """The output of a tool."""

    content: Content
    success: bool = True

    def as_item(self) -> str | list[Json]:
        """The output for an item; the text says that the tool failed, because no field can."""
        content = self.content.as_item("input_text")
        if self.success:
            return content
        if isinstance(content, str):
            return TOOL_FAILED + content
        return [{"type": "input_text", "text": TOOL_FAILED}, *content]


@frozen
class Answered:
    """The output of a call."""

    call_id: str
    output: Output


@frozen
class _TextPart:
    text: str


@frozen
class Thought:
    """The model's reasoning, sealed or open; a summary alone is not sent to the model."""

    summary: tuple[_TextPart, ...] = ()
    content: tuple[_TextPart, ...] | None = None
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
    """A sealed, shortened conversation."""

    encrypted_content: str


@frozen
class Trigger:
    """The request to shorten the conversation before it."""


@frozen
class Reference:
    """A reference to a stored item."""

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
    """The reasoning effort from here on."""

    reasoning: _Effort | None = None
    text: dict[str, Any] | None = None


@frozen
class LeftOut:
    """An item that no backend here can read."""

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
    """One item, as it was sent and as it was understood."""

    given: Json
    what: What
    opened: tuple[What, ...] | None = None
    """The items that it stands for, once resolved."""

    @property
    def meant(self) -> tuple[What, ...]:
        return (self.what,) if self.opened is None else self.opened


@frozen
class Input:
    """The input: a string is one user message."""

    items: tuple[Item, ...] = ()
