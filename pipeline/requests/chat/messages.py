"""The messages of a chat request, each checked by itself."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen

from pipeline.requests.shared.parts import Content
from pipeline.requests.shared.structure import WrongError

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]

_ROLES_WITH_IMAGES: Final = frozenset({"user", "tool", "function"})


@frozen
class CalledFunction:
    """The function of a call; the arguments are the model's own string."""

    name: str
    arguments: str

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise WrongError("is empty; it must be the name of the function", ".name")


@frozen
class Call:
    """A call that the assistant made earlier."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"

    def __attrs_post_init__(self) -> None:
        if not self.id:
            raise WrongError("is empty; it must be the id that the call was made with", ".id")


@frozen
class ChatMessage:
    """One message. Fields that its role does not have are ignored."""

    role: Role
    content: Content = Content()
    name: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.role != "assistant" and self.content.value is None:
            raise WrongError(
                "is missing; it must be a string or an array of parts (only an assistant message "
                "can have none)",
                ".content",
            )
        if self.role == "user" and self.content.value == ():
            raise WrongError("is empty; it must have at least one part", ".content")
        if self.role not in _ROLES_WITH_IMAGES and self.content.images:
            raise WrongError(
                f"contains an image, which the role {self.role} cannot send; send it as the user",
                ".content",
            )
        if self.role == "tool" and not self.tool_call_id:
            raise WrongError(
                "is missing; it must be the id of the call that this is the output of",
                ".tool_call_id",
            )
        if self.role == "function" and not self.name:
            raise WrongError("is missing; it must be the name of the function", ".name")
