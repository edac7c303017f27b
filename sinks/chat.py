"""What both chat sinks share: events read as the parts of one assistant message per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from attrs import Factory, define, frozen

from pipeline.errors import Failure
from pipeline.events import Event, Failed, ReasoningDelta, TextDelta, ToolCall, TurnEnd, Usage
from pipeline.formats.call_shapes import chat_call
from pipeline.formats.use_tool import write_use_tool
from sinks.finish_reason import finish_reason


@frozen
class ChatOptions:
    """How one answer is written."""

    response_id: str = "chatcmpl-0"
    created: int = 0
    model: str = "codex"
    choices: int = 1
    include_usage: bool = False
    legacy_functions: bool = False
    write_xml: bool = False
    delimiter: str = "\n"
    reasoning: bool = True
    cut_mode: str = "burst"
    declares_tools: bool = False
    """Whether the request declared tools: then a stream without calls tells that it has none."""


Part: TypeAlias = (
    tuple[Literal["content"], str]
    | tuple[Literal["reasoning_content"], str]
    | tuple[Literal["tool_calls"], ToolCall]
)
"""A part of an assistant message, in the order a client reads them."""


@define
class ChatChoice:
    """One choice of the answer, as far as it has come."""

    options: ChatOptions
    calls: list[ToolCall] = Factory(list[ToolCall])
    finish: str | None = None
    truncated: bool = False
    failure: Failure | None = None
    started: bool = False
    _reasoning_part: tuple[str, int] | None = None

    @property
    def error(self) -> Failure | None:
        """What the client is told went wrong: nothing, once it has a call to run."""
        return None if self.calls else self.failure

    def parts(self, event: Event) -> Sequence[Part]:
        """What an event adds to the message."""
        match event:
            case TextDelta():
                return [("content", event.text)]
            case ReasoningDelta() if self.options.reasoning:
                return [("reasoning_content", self._separated(event))]
            case ToolCall():
                return self._call(event)
            case Failed():
                self.failure = event.error
                self.truncated = self.truncated or event.calls_truncated
                return ()
            case TurnEnd():
                self._end(event)
                return ()
            case _:
                return ()

    def _separated(self, event: ReasoningDelta) -> str:
        """Reasoning comes in parts with headings; a blank line keeps them apart."""
        part = (event.item_id, event.part)
        new = self._reasoning_part is not None and part != self._reasoning_part
        self._reasoning_part = part
        return f"\n\n{event.text}" if new else event.text

    def _call(self, call: ToolCall) -> Sequence[Part]:
        delimiter = self.options.delimiter if self.calls else ""
        self.calls.append(call)
        if not self.options.write_xml:
            return [("tool_calls", call)]
        block = write_use_tool(call.name, call.arguments)
        return [("content", delimiter + block), ("tool_calls", call)]

    def _end(self, end: TurnEnd) -> None:
        self.truncated = self.truncated or end.calls_truncated or end.call_incomplete
        reason = finish_reason(
            end.reason, has_calls=bool(self.calls), call_incomplete=end.call_incomplete
        )
        legacy = self.options.legacy_functions and reason == "tool_calls"
        self.finish = "function_call" if legacy else reason


@define
class ChatAnswer:
    """All choices of one answer, and what they cost together."""

    options: ChatOptions
    choices: list[ChatChoice] = Factory(
        lambda self: [ChatChoice(self.options) for _ in range(self.options.choices)],
        takes_self=True,
    )
    _usage: list[Usage] = Factory(list[Usage])

    def count(self, usage: Usage) -> None:
        self._usage.append(usage)

    @property
    def ended(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    @property
    def calls(self) -> list[ToolCall]:
        return [call for choice in self.choices for call in choice.calls]

    @property
    def call_count(self) -> int:
        return len(self.calls)

    @property
    def finish_reason(self) -> object:
        """How the one choice ended, or each of several."""
        finishes = [choice.finish for choice in self.choices]
        return finishes[0] if len(finishes) == 1 else finishes

    @property
    def hidden_failure(self) -> Failure | None:
        """What failed after a call was given out: the call stands, and the operator is told."""
        failures = (choice.failure for choice in self.choices if choice.calls)
        return next((failure for failure in failures if failure is not None), None)

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Those read and those written, where they are known."""
        if not self._usage:
            return None
        read = sum(usage.input_tokens for usage in self._usage)
        return read, sum(usage.output_tokens for usage in self._usage)

    @property
    def truncated(self) -> bool:
        return any(choice.truncated for choice in self.choices)

    @property
    def error(self) -> Failure | None:
        """The first failure a client must be told of."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)

    def usage(self) -> dict[str, Any] | None:
        """The exact token counts, summed over upstream responses; None where none were given."""
        if not self._usage:
            return None
        return {
            "prompt_tokens": sum(usage.input_tokens for usage in self._usage),
            "completion_tokens": sum(usage.output_tokens for usage in self._usage),
            "total_tokens": sum(usage.total_tokens for usage in self._usage),
            "prompt_tokens_details": {
                "cached_tokens": sum(usage.cached_tokens for usage in self._usage)
            },
            "completion_tokens_details": {
                "reasoning_tokens": sum(usage.reasoning_tokens for usage in self._usage)
            },
        }


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as both forms of the answer write it."""
    return chat_call(call.call_id, call.name, call.arguments)


class UnfinishedTurnError(RuntimeError):
    """The events ended without a TurnEnd."""

    def __init__(self) -> None:
        super().__init__(
            "the events ended without a TurnEnd; a recipe needs its 'guard' stage, or another that "
            "promises an end"
        )
