"""The v1 events, `codex/event/*` or without that prefix, of Codex 0.89 and before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from attrs import Factory, define

from pipeline.events import Event
from pipeline.formats.call_shapes import fragments_of, whole_calls_of
from pipeline.formats.content import content_text
from pipeline.loose_json import Json, as_json, is_json, text_of
from sources.decode.items import MIRROR, SILENT, TurnState
from sources.decode.v2 import interrupted

PREFIX: Final = "codex/event/"


@define
class LegacyState:
    """Which of several equivalent events is read: the first kind that came."""

    turn: TurnState
    text_kind: str = ""
    reasoning_kinds: dict[str, str] = Factory(dict[str, str])
    section: int = 0


def _text_delta(kind: str, state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    state.text_kind = state.text_kind or kind
    if kind != state.text_kind:
        return state.turn.drop(MIRROR)
    delta = msg.get("delta", msg.get("content"))
    fragments = fragments_of(msg, choice=state.turn.choice, at=at)
    if is_json(delta):
        delta = delta.get("content")
    if fragments and not isinstance(delta, str):
        return fragments
    return [*state.turn.say(delta, msg.get("item_id"), at), *fragments]


def _message(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    message = msg.get("message")
    holder = as_json(message) or msg
    text = message if isinstance(message, str) else content_text(holder.get("content"))
    calls = whole_calls_of(holder, choice=state.turn.choice, at=at)
    if calls and not text:
        return calls
    return [*state.turn.say_finished(text, "", at), *calls]


def _reasoning_delta(
    kind_of_text: Literal["summary", "text"], kind: str, state: LegacyState, msg: Json, at: float
) -> Sequence[Event]:
    if state.reasoning_kinds.setdefault(kind_of_text, kind) != kind:
        return state.turn.drop(MIRROR)
    part = msg.get("summary_index", state.section)
    return state.turn.think(msg.get("delta"), kind_of_text, part, msg.get("item_id"), at)


def _reasoning(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    if not state.turn.reasoning.finished():
        return state.turn.drop(MIRROR)
    events = state.turn.think(msg.get("text"), "summary", state.section, "", at)
    state.section += 1
    state.turn.reasoning.finished()
    return events


def _section_break(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    state.section += 1
    return state.turn.drop(SILENT)


def _item_started(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    item = as_json(msg.get("item"))
    state.turn.item_begins(item.get("id"))
    if item.get("type") == "AgentMessage":
        state.turn.text.begin()
    return state.turn.drop(SILENT)


def _token_count(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    info = as_json(msg.get("info"))
    last, total = as_json(info.get("last_token_usage")), as_json(info.get("total_token_usage"))
    return state.turn.usage_total(last, total, at)


def _error(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    failed = state.turn.codex_error(msg, will_retry=False, at=at)
    return failed if state.turn.ended else [*failed, *state.turn.end("failed", at)]


def _stream_error(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    return state.turn.codex_error(msg, will_retry=True, at=at)


def _task_complete(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    return state.turn.end("completed", at)


def _silent(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    return state.turn.drop(SILENT)


def _mcp(state: LegacyState, msg: Json, at: float) -> Sequence[Event]:
    return state.turn.notice("mcp", text_of(msg.get("type")), at)


HANDLERS: Final[dict[str, Callable[[LegacyState, Json, float], Sequence[Event]]]] = {
    "agent_message_delta": partial(_text_delta, "agent_message_delta"),
    "agent_message_content_delta": partial(_text_delta, "agent_message_content_delta"),
    "agent_message": _message,
    "agent_reasoning_delta": partial(_reasoning_delta, "summary", "agent_reasoning_delta"),
    "reasoning_content_delta": partial(_reasoning_delta, "summary", "reasoning_content_delta"),
    "agent_reasoning_raw_content_delta": partial(
        _reasoning_delta, "text", "agent_reasoning_raw_content_delta"
    ),
    "reasoning_raw_content_delta": partial(_reasoning_delta, "text", "reasoning_raw_content_delta"),
    "agent_reasoning": _reasoning,
    "agent_reasoning_section_break": _section_break,
    "raw_response_item": lambda s, msg, at: s.turn.raw_item(as_json(msg.get("item")), at),
    "dynamic_tool_call_request": lambda s, msg, at: s.turn.requested_call(msg, at),
    "item_started": _item_started,
    "item_completed": _silent,
    "user_message": _silent,
    "session_configured": _silent,
    "task_started": _silent,
    "turn_started": _silent,
    "token_count": _token_count,
    "error": _error,
    "stream_error": _stream_error,
    "task_complete": _task_complete,
    "turn_complete": _task_complete,
    "turn_aborted": lambda s, msg, at: interrupted(s.turn, at),
    "mcp_startup_update": _mcp,
    "mcp_startup_complete": _mcp,
    "mcp_tool_call_begin": _mcp,
    "mcp_tool_call_end": _mcp,
    "mcp_list_tools_response": _mcp,
    "warning": _silent,
    "background_event": _silent,
    "deprecation_notice": _silent,
    "plan_update": _silent,
    "turn_diff": _silent,
}

NOISE: Final = frozenset(
    {
        "apply_patch_approval_request",
        "collab_agent_interaction_begin",
        "collab_agent_interaction_end",
        "collab_agent_spawn_begin",
        "collab_agent_spawn_end",
        "collab_close_begin",
        "collab_close_end",
        "collab_waiting_begin",
        "collab_waiting_end",
        "context_compacted",
        "elicitation_request",
        "entered_review_mode",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_end",
        "exec_command_output_delta",
        "exited_review_mode",
        "get_history_entry_response",
        "list_custom_prompts_response",
        "list_skills_response",
        "patch_apply_begin",
        "patch_apply_end",
        "plan_delta",
        "request_user_input",
        "shutdown_complete",
        "skills_update_available",
        "terminal_interaction",
        "thread_name_updated",
        "thread_rolled_back",
        "undo_completed",
        "undo_started",
        "view_image_tool_call",
        "web_search_begin",
        "web_search_end",
    }
)
"""Events about Codex's own tools and notes."""
