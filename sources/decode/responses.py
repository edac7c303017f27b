"""Decodes the events of a Responses API, with all known variations of their fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pipeline.events import Event, Failed, TextDelta
from pipeline.formats.call_shapes import call_key, fragments_of, has_unreadable_arguments, is_call
from pipeline.formats.content import content_text
from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.decode.failures import responses_failure
from sources.decode.items import MIRROR, REPEATED, SILENT, TurnState


def _text_delta(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    return state.say(event.get("delta"), event.get("item_id"), at)


def _refusal(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    state.refused = True
    return _text_delta(state, event, at)


def _text_done(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    text = text_of(event.get("text")) or text_of(event.get("refusal"))
    return state.say_finished(text, text_of(event.get("item_id")), at)


def _summary_delta(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    item, part = event.get("item_id"), event.get("summary_index")
    return state.think(event.get("delta"), "summary", part, item, at)


def _reasoning_delta(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    item, part = event.get("item_id"), event.get("content_index")
    return state.think(event.get("delta"), "text", part, item, at)


def _fragments(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    return fragments_of(event, choice=state.choice, at=at) or state.drop(SILENT)


def _arguments_delta(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    if not isinstance(event.get("delta"), str):
        return _unreadable_arguments(state, event)
    return _fragments(state, event, at)


def _arguments_done(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    if has_unreadable_arguments(event):
        return _unreadable_arguments(state, event)
    return _fragments(state, event, at)


def _unreadable_arguments(state: TurnState, event: Json) -> Sequence[Event]:
    """An unreadable piece of a call, which is lost only if its finished item is unreadable too."""
    reason = "arguments that are not a string"
    return state.problem("unreadable_call", text_of(event.get("type")), reason)


def _item_added(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    item = as_json(event.get("item"))
    state.item_begins(item.get("id"))
    match item.get("type"):
        case "message":
            state.text.begin()
        case "reasoning":
            state.reasoning.begin()
        case _:
            pass
    return _fragments(state, event, at)


def _item_done(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    """A finished item. A message may have calls as parts of its content."""
    item = as_json(event.get("item"))
    if item.get("type") == "custom_tool_call" or (is_call(item) and has_unreadable_arguments(item)):
        return state.lost_call("unreadable", item, at, call_key(event, item))
    calls = fragments_of(event, choice=state.choice, at=at)
    whole_item = item.get("type") in ("message", "reasoning")
    if whole_item and state.repeated(text_of(item.get("id")), raw=True):
        return calls or state.drop(REPEATED)
    match item.get("type"):
        case "message":
            text = content_text([p for p in as_list(item.get("content")) if not is_call(p)])
            if state.text.raw() and text:
                return [TextDelta(text, text_of(item.get("id")), state.choice, at), *calls]
            return calls or state.drop(MIRROR)
        case "reasoning":
            return state.reasoning_item(item, at)
        case "function_call_output":
            return state.raw_item(item, at)
        case _:
            return calls or state.other_item(item)


def _completed(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    response = as_json(event.get("response"))
    if response.get("status") == "incomplete":
        return _incomplete(state, event, at)
    if response.get("status") == "failed":
        return _failed(state, event, at)
    usage = as_json(response.get("usage"))
    ending = state.response_end(usage, response.get("id"), at)
    return [*ending, *state.end("content_filter" if state.refused else "completed", at)]


def _incomplete(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    response = as_json(event.get("response"))
    reason = text_of(as_json(response.get("incomplete_details")).get("reason"))
    usage = state.usage_only(as_json(response.get("usage")), at)
    return [*usage, *state.end(reason or "length", at)]


def _failed(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    error = as_json(as_json(event.get("response")).get("error")) or as_json(event.get("error"))
    failure = responses_failure(error or event)
    failed = state.fail(lambda: Failed(failure, state.choice, at))
    return [*failed, *state.end("failed", at)]


def _done(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    """`[DONE]` as the only end: some backends send no `response.completed`."""
    return state.end("completed", at)


def _silent(state: TurnState, event: Json, at: float) -> Sequence[Event]:
    return state.drop(SILENT)


DONE: Final = "[DONE]"

HANDLERS: Final[dict[str, Callable[[TurnState, Json, float], Sequence[Event]]]] = {
    "response.output_text.delta": _text_delta,
    "response.output_text.done": _text_done,
    "response.refusal.delta": _refusal,
    "response.refusal.done": _text_done,
    "response.reasoning_summary_text.delta": _summary_delta,
    "response.reasoning_text.delta": _reasoning_delta,
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.content_part.added": _fragments,
    "response.function_call_arguments.delta": _arguments_delta,
    "response.function_call_arguments.done": _arguments_done,
    "response.completed": _completed,
    "response.done": _completed,
    "response.incomplete": _incomplete,
    "response.failed": _failed,
    "error": _failed,
    DONE: _done,
    "response.created": _silent,
    "response.in_progress": _silent,
    "response.queued": _silent,
    "response.content_part.done": _silent,
    "response.reasoning_summary_part.added": _silent,
    "response.reasoning_summary_part.done": _silent,
    "response.reasoning_summary_text.done": _silent,
    "response.reasoning_text.done": _silent,
    "keepalive": _silent,
}

NOISE: Final = (
    "codex.",
    "response.audio.",
    "response.code_interpreter_call",
    "response.compaction.",
    "response.custom_tool_call_input.",
    "response.file_search_call.",
    "response.image_generation_call.",
    "response.mcp_call",
    "response.mcp_list_tools.",
    "response.metadata",
    "response.output_text.annotation.",
    "response.shell_call",
    "response.web_search_call.",
)
"""Prefixes of the types of events about the progress of a backend's own tools."""
