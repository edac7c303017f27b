"""Settings → Pipeline: which stages there are and in what order, in one readable place."""

from __future__ import annotations

import time
from functools import partial
from uuid import uuid4

from pipeline.chain import Pipeline
from pipeline.settings import Settings
from pipeline.turn import Turn
from sinks.chat import ChatOptions
from stages.aggregate_tool_calls import AggregateToolCalls
from stages.cap_tool_calls import CapToolCalls
from stages.cut_after_tools import CutAfterTools
from stages.dedup_tool_calls import DedupToolCalls
from stages.drop_mcp_noise import DropMcpNoise
from stages.guard_contract import GuardContract
from stages.reconcile_retries import ReconcileRetries


def recipe(settings: Settings) -> Pipeline:
    """The stages between a backend and a client, in the order events pass them."""
    return Pipeline(
        [
            ("noise", DropMcpNoise),
            ("retries", ReconcileRetries),
            (
                "calls",
                partial(AggregateToolCalls, settings.unknown_tool_policy, settings.output_mode),
            ),
            (
                "cut",
                partial(
                    CutAfterTools,
                    stop=settings.stop_after_tools,
                    mode=settings.stop_after_tools_mode,
                    grace=settings.stop_after_tools_grace_ms / 1000,
                    suppress_tail=settings.suppress_tail_after_tools,
                ),
            ),
            ("dedup", partial(DedupToolCalls, settings.tool_block_dedup)),
            ("cap", partial(CapToolCalls, settings.tool_block_max)),
            ("guard", GuardContract),
        ]
    )


def chat_options(
    settings: Settings, turn: Turn, *, response_id: str = "", created: int | None = None
) -> ChatOptions:
    """How one request's answer is written, from the operator's settings and the request."""
    return ChatOptions(
        response_id=response_id or f"chatcmpl-{uuid4().hex}",
        created=int(time.time()) if created is None else created,
        model=turn.model,
        include_usage=turn.include_usage,
        legacy_functions=turn.legacy_functions,
        write_xml=settings.output_mode_for(turn) == "obsidian-xml",
        delimiter=settings.tool_block_delimiter,
        reasoning=settings.reasoning_content,
        cut_mode=settings.effective_cut_mode,
    )
