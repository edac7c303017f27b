"""What both chat sinks share: events read as the parts of one assistant message per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from attrs import Factory, define, frozen

from pipeline.errors import Failure
from pipeline.events import Event, Failed, ReasoningDelta, TextDelta, ToolCall, TurnEnd, Usage
from pipeline.formats.call_shapes import chat_call
from pipeline.formats.use_tool import write_use_tool
from sinks.answer import Answer
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
    """Whether the request declared tools: then a stream without calls says that it has none."""


Part: TypeAlias = (
    tuple[Literal["content", "reasoning_content", "finish_reason"], str]
    | tuple[Literal["tool_calls"], ToolCall]
)
"""A part of an assistant message, in the order a client reads them."""


@define
class ChatChoice:
    """One choice of the answer, as far as it has come."""

    options: ChatOptions
    calls: list[ToolCall] = Factory(list[ToolCall])
    finish: str | None = None
    failure: Failure | None = None
    _reasoning_part: tuple[str, int] | None = None

    @property
    def error(self) -> Failure | None:
        """The failure that the client reads: none, once it has a call to run."""
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
            case TurnEnd():
                return [("finish_reason", self._end(event))]
            case _:
                pass
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

    def _end(self, end: TurnEnd) -> str:
        reason = finish_reason(
            end.reason, has_calls=bool(self.calls), call_incomplete=end.call_incomplete
        )
        legacy = self.options.legacy_functions and reason == "tool_calls"
        self.finish = "function_call" if legacy else reason
        return self.finish


class ChatAnswer(Answer):
    """All choices of one answer, and what they cost together."""

    def __init__(self, options: ChatOptions) -> None:
        super().__init__()
        self.options = options
        self.choices = [ChatChoice(options) for _ in range(options.choices)]

    def parts(self, event: Event) -> Sequence[Part]:
        """What an event adds to the message of its choice; once that has ended, nothing."""
        choice = self.choices[event.choice]
        match event:
            case Usage():
                self.count(event)
            case _ if choice.finish is not None:
                return ()
            case ToolCall():
                self.calls.append(event)
            case Failed() | TurnEnd():
                self.note_truncation(event)
            case _:
                pass
        return choice.parts(event)

    @property
    def ended(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    @property
    def finish_reason(self) -> object:
        """How the one choice ended, or each of several."""
        finishes = [choice.finish for choice in self.choices]
        return finishes[0] if len(finishes) == 1 else finishes

    @property
    def hidden_failure(self) -> Failure | None:
        """What failed after a call was written: the call stands, and only the log has it."""
        failures = (choice.failure for choice in self.choices if choice.calls)
        return next((failure for failure in failures if failure is not None), None)

    @property
    def error(self) -> Failure | None:
        """The first failure that the client must read."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)

    def usage(self) -> dict[str, Any] | None:
        """The exact token counts, summed over upstream responses; None where none were given."""
        if (spent := self._spent) is None:
            return None
        return {
            "prompt_tokens": spent.input_tokens,
            "completion_tokens": spent.output_tokens,
            "total_tokens": spent.total_tokens,
            "prompt_tokens_details": {"cached_tokens": spent.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
        }


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as both forms of the answer write it."""
    return chat_call(call.call_id, call.name, call.arguments)
