"""From settings to the parts: which stages there are and in what order, and their options."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from pipeline.config.settings import Settings
from pipeline.errors import UsageError
from pipeline.loose_json import Json
from pipeline.recipe import Pipeline
from pipeline.turn import Turn
from sinks.chat import ChatOptions
from sinks.responses import ResponsesOptions, unique_id
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.patience import Patience
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.record import Recorder
from sources.responses_request import ResponsesApi
from stages.aggregate_tool_calls import AggregateToolCalls
from stages.cap_tool_calls import CapToolCalls
from stages.cut_after_tools import CutAfterTools
from stages.dedup_tool_calls import DedupToolCalls
from stages.drop_mcp_noise import DropMcpNoise
from stages.guard_contract import GuardContract
from stages.reconcile_retries import ReconcileRetries
from stages.stop_at_sequences import StopAtSequences


def recipe(settings: Settings) -> Pipeline:
    """The stages between a backend and a client, in the order events pass them."""
    return Pipeline(
        [
            ("noise", DropMcpNoise),
            ("retries", ReconcileRetries),
            ("calls", partial(AggregateToolCalls, settings)),
            ("stop", StopAtSequences),
            ("cut", partial(CutAfterTools, settings)),
            ("dedup", partial(DedupToolCalls, settings)),
            ("cap", partial(CapToolCalls, settings, stop=settings.stop_after_tools)),
        ],
        guard=GuardContract,
    )


def backend_options(settings: Settings) -> BackendOptions:
    """The app-servers of the settings, and what they may do."""
    token = settings.codex_token
    if settings.codex_token_file:
        try:
            token = Path(settings.codex_token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            name = f"CODEX_APP_SERVER_TOKEN_FILE={settings.codex_token_file}"
            raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    if settings.expose_mcp_tools and not settings.codex_mcp_servers:
        raise UsageError(
            "PROXY_EXPOSE_MCP_TOOLS=true offers tools of MCP servers that do not run; it needs "
            "CODEX_MCP_SERVERS=true as well"
        )
    addresses = [address.strip() for address in settings.codex_app_server.split(",")]
    return BackendOptions(
        addresses=tuple(address for address in addresses if address),
        codex=settings.codex_bin,
        home=Path(settings.codex_home).expanduser() if settings.codex_home else None,
        token=token,
        web_search=settings.codex_web_search,
        view_image=settings.codex_view_image,
        mcp_servers=settings.codex_mcp_servers,
        mcp_tools=settings.expose_mcp_tools,
        bounds=Bounds(
            settings.codex_first_event_timeout,
            settings.codex_idle_timeout,
            settings.codex_turn_timeout,
            outputs=max(Bounds().outputs, 2 * settings.stop_after_tools_grace_ms / 1000),
        ),
        patience=Patience(
            most_turns=settings.codex_recycle_turns,
            most_memory=settings.codex_recycle_mb * 1_000_000,
        ),
        keep=KeepOptions(
            most=settings.codex_hold_turns_max if settings.codex_hold_turns else 0,
            seconds=settings.codex_hold_turns_time,
        ),
    )


def responses_api(settings: Settings) -> ResponsesApi | None:
    """The Responses API that serves turns instead of an app-server, if there is one."""
    if not settings.backend:
        return None
    bounds = backend_options(settings).bounds
    return ResponsesApi(settings.backend, settings.backend_api_key, bounds)


def recorder(settings: Settings) -> Recorder | None:
    """The recorder of live turns, if a folder is set."""
    if not settings.record_dir:
        return None
    return Recorder(Path(settings.record_dir).expanduser(), redact=settings.record_redact)


def chat_options(
    settings: Settings, turn: Turn, *, response_id: str = "", created: int | None = None
) -> ChatOptions:
    """How a chat answer is written, from the settings and the request."""
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
        declares_tools=bool(turn.tools),
    )


def responses_options(  # noqa: PLR0913
    settings: Settings,
    turn: Turn,
    echo: Json | None = None,
    *,
    response_id: str = "",
    created: int | None = None,
    include_encrypted: bool = False,
    new_id: Callable[[str], str] = unique_id,
) -> ResponsesOptions:
    """How an answer is written on the Responses API.

    `echo` has the request's fields, which the response object repeats. The turn must be the one
    that the stages got, from `settings.on_responses`: they look for calls by the same mode.
    """
    return ResponsesOptions(
        response_id=response_id or new_id("resp"),
        created=int(time.time()) if created is None else created,
        echo={"model": turn.model, **(echo or {})},
        tools={tool.name: tool for tool in turn.tools},
        write_xml=settings.output_mode_for(settings.on_responses(turn)) == "obsidian-xml",
        delimiter=settings.tool_block_delimiter,
        reasoning=settings.reasoning_content,
        include_encrypted=include_encrypted,
        cut_mode=settings.effective_cut_mode,
        new_id=new_id,
    )
