"""Decodes the app-server's v2 notifications, with or without raw events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pipeline.errors import Failure
from pipeline.events import Event, Failed, ToolOutput
from pipeline.formats.content import content_text, content_texts
from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.decode.items import (
    COMPACTION,
    MIRROR,
    REPEATED,
    SILENT,
    TurnState,
)

TEXT_DELTA: Final = "item/agentMessage/delta"
RAW_ITEM: Final = "rawResponseItem/completed"
RESPONSE_END: Final = "rawResponse/completed"


def _text_delta(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    return state.say(params.get("delta"), params.get("itemId"), at)


def _summary_delta(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    item = params.get("itemId")
    return state.think(params.get("delta"), "summary", params.get("summaryIndex"), item, at)


def _reasoning_delta(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    item = params.get("itemId")
    return state.think(params.get("delta"), "text", params.get("contentIndex"), item, at)


def _item_started(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    item = as_json(params.get("item"))
    state.item_begins(item.get("id"))
    match item.get("type"):
        case "agentMessage":
            state.text.begin()
        case "reasoning":
            state.reasoning.begin()
        case "dynamicToolCall":
            return state.requested_call(item, at)
        case "contextCompaction":
            state.compacting = True
        case _:
            pass
    return state.drop(SILENT)


def _item_completed(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    item = as_json(params.get("item"))
    kind, item_id = text_of(item.get("type")), text_of(item.get("id"))
    if kind == "contextCompaction":
        state.compacting = False
    if state.compacting:
        return state.drop(COMPACTION)
    if kind in ("agentMessage", "reasoning") and state.repeated(item_id):
        return state.drop(REPEATED)
    match kind:
        case "agentMessage":
            return state.say_finished(text_of(item.get("text")), item_id, at)
        case "reasoning" if not state.raw_items:
            summary = [{"text": text} for text in content_texts(item.get("summary"))]
            return state.reasoning_item({"id": item_id, "summary": summary}, at)
        case "dynamicToolCall" if not state.raw_items:
            output = content_text(as_list(item.get("contentItems")))
            return (ToolOutput(item_id, output, state.choice, at),)
        case "mcpToolCall":
            failure = as_json(item.get("error")).get("message")
            return state.drop(MIRROR) if state.raw_items else state.notice("mcp", failure, at)
        case _ if kind in ITEMS:
            return state.drop(SILENT)
        case _:
            return state.other_item(item)


def _turn_started(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    state.started = True
    return state.drop(SILENT)


def _raw_item(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    if state.compacting:
        return state.drop(COMPACTION)
    return state.raw_item(as_json(params.get("item")), at)


def _response_completed(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    if state.compacting:
        return state.drop(COMPACTION)
    return state.response_end(as_json(params.get("usage")), params.get("responseId"), at)


def _token_usage(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    usage = as_json(params.get("tokenUsage"))
    return state.usage_total(as_json(usage.get("last")), as_json(usage.get("total")), at)


def _error(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    retry = params.get("willRetry") is True
    return state.codex_error(as_json(params.get("error")), will_retry=retry, at=at)


def _turn_completed(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    turn = as_json(params.get("turn"))
    match turn.get("status"):
        case "failed":
            failed = state.codex_error(as_json(turn.get("error")), will_retry=False, at=at)
            return failed if state.ended else [*failed, *state.end("failed", at)]
        case "interrupted":
            return interrupted(state, at)
        case _:
            return state.end("completed", at)


def interrupted(state: TurnState, at: float) -> Sequence[Event]:
    """Something else ended the turn: the answer is incomplete."""
    failure = Failure(
        "the turn was interrupted before its answer was complete; send the request again",
        status=502,
        type="server_error",
        code="turn_interrupted",
    )
    failed = state.fail(lambda: Failed(failure, state.choice, at))
    return [*failed, *state.end("interrupted", at)]


def _mcp_status(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    message = f"{text_of(params.get('name'))} {text_of(params.get('status'))}".strip()
    return state.notice("mcp", message, at)


def _silent(state: TurnState, params: Json, at: float) -> Sequence[Event]:
    return state.drop(SILENT)


HANDLERS: Final[dict[str, Callable[[TurnState, Json, float], Sequence[Event]]]] = {
    TEXT_DELTA: _text_delta,
    "item/reasoning/summaryTextDelta": _summary_delta,
    "item/reasoning/textDelta": _reasoning_delta,
    "item/started": _item_started,
    "item/completed": _item_completed,
    "item/tool/call": lambda state, params, at: state.requested_call(params, at),
    RAW_ITEM: _raw_item,
    RESPONSE_END: _response_completed,
    "thread/tokenUsage/updated": _token_usage,
    "error": _error,
    "turn/started": _turn_started,
    "turn/completed": _turn_completed,
    "mcpServer/startupStatus/updated": _mcp_status,
    "item/reasoning/summaryPartAdded": _silent,
}

NOISE: Final = frozenset(
    {
        "account/gatewayOAuth/changed",
        "account/login/completed",
        "account/rateLimits/updated",
        "account/updated",
        "configWarning",
        "deprecationNotice",
        "guardianWarning",
        "item/commandExecution/outputDelta",
        "item/commandExecution/terminalInteraction",
        "item/fileChange/outputDelta",
        "item/fileChange/patchUpdated",
        "item/mcpToolCall/progress",
        "item/plan/delta",
        "mcpServer/event/stream/notification",
        "mcpServer/oauthLogin/completed",
        "model/rerouted",
        "model/safetyBuffering/updated",
        "model/verification",
        "remoteControl/status/changed",
        "serverRequest/resolved",
        "thread/archived",
        "thread/attachment/updated",
        "thread/closed",
        "thread/compacted",
        "thread/deleted",
        "thread/name/updated",
        "thread/prediction/updated",
        "thread/project/updated",
        "thread/queue/changed",
        "thread/readState/changed",
        "thread/reverted",
        "thread/settings/updated",
        "thread/started",
        "thread/status/changed",
        "thread/unarchived",
        "turn/diff/updated",
        "turn/moderationMetadata",
        "turn/plan/updated",
        "warning",
        # Requests of the backend, which the connection declines.
        "account/chatgptAuthTokens/refresh",
        "applyPatchApproval",
        "attestation/generate",
        "currentTime/read",
        "execCommandApproval",
        "item/commandExecution/requestApproval",
        "item/fileChange/requestApproval",
        "item/permissions/requestApproval",
        "item/tool/requestUserInput",
        "mcpServer/elicitation/request",
    }
)
"""Methods of known versions that no client needs."""
NOISY_FEATURES: Final = (
    "app/",
    "autoApprovalReview/",
    "command/exec/",
    "externalAgentConfig/",
    "fs/",
    "fuzzyFileSearch/",
    "hook/",
    "item/autoApprovalReview/",
    "modelProvider/",
    "process/",
    "project/",
    "skills/",
    "thread/environment/",
    "thread/goal/",
    "thread/realtime/",
    "windows/",
    "windowsSandbox/",
)
"""Prefixes of the methods of features that no turn uses."""
ITEMS: Final = frozenset(
    {
        "agentMessage",
        "collabAgentToolCall",
        "collabToolCall",
        "commandExecution",
        "contextCompaction",
        "dynamicToolCall",
        "enteredReviewMode",
        "exitedReviewMode",
        "fileChange",
        "functionCallOutput",
        "hookPrompt",
        "imageGeneration",
        "imageView",
        "mcpToolCall",
        "plan",
        "reasoning",
        "sleep",
        "subAgentActivity",
        "userMessage",
        "webSearch",
    }
)
"""The item types of known versions."""
