"""Settings of how requests are read."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from pipeline.options import Escaped
from pipeline.options import server_flag as flag

ParallelCalls: TypeAlias = Literal["request", "true", "false"]


@frozen(slots=False)
class RequestOptions:
    """Which parts of a request are used or replaced."""

    ignore_client_system_prompt: bool = flag(
        "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT", False, "leave out system and developer messages"
    )
    base_instructions: Escaped = flag(
        "PROXY_BASE_INSTRUCTIONS", "", "base instructions that replace Codex's own"
    )
    parallel_tool_calls: ParallelCalls = flag(
        "PROXY_ENABLE_PARALLEL_TOOL_CALLS",
        "request",
        "request: as the request's parallel_tool_calls says; true: many calls a turn; false: one",
    )
    strict_params: bool = flag(
        "PROXY_STRICT_PARAMS",
        False,
        "reject parameters that have no effect, as the header x-proxy-strict: 1 does",
    )

    def calls_in_parallel(self, requested: bool | None) -> bool:
        """Whether a request may get more than one call: by the setting, else by the request."""
        if self.parallel_tool_calls == "request":
            return requested is not False
        return self.parallel_tool_calls == "true"
