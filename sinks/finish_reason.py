"""The one finish reason a chat client reads, whatever word the backend had for it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

ALIASES: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "completed": "stop",
    "complete": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "token_limit": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


def finish_reason(
    backend_word: str, *, has_calls: bool, call_incomplete: bool = False
) -> FinishReason:
    """Calls that were forwarded decide, except over a call that was cut off in the middle."""
    reason = ALIASES.get(backend_word.lower(), "stop")
    if has_calls and not (reason == "length" and call_incomplete):
        return "tool_calls"
    # A client that reads `tool_calls` without a call waits for one that never comes.
    return "stop" if reason == "tool_calls" else reason
