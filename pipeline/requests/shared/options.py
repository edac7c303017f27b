"""Settings of how requests are read."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from pipeline.options import Escaped
from pipeline.options import server_flag as flag

ParallelCalls: TypeAlias = Literal["request", "true", "false"]


@frozen(slots=False)
class RequestOptions:
    """What of a request is used, and what is put in place of it."""

    ignore_client_system_prompt: bool = flag(
        "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT", False, "leave system and developer messages out"
    )
    base_instructions: Escaped = flag(
        "PROXY_BASE_INSTRUCTIONS", "", "base instructions to use in place of Codex's own"
    )
    parallel_tool_calls: ParallelCalls = flag(
        "PROXY_ENABLE_PARALLEL_TOOL_CALLS",
        "request",
        "request lets parallel_tool_calls decide; true allows many calls a turn, false one",
    )
    strict_params: bool = flag(
        "PROXY_STRICT_PARAMS",
        False,
        "refuse parameters that have no effect, as the header x-proxy-strict: 1 does",
    )

    def calls_in_parallel(self, requested: bool | None) -> bool:
        """Whether a request may get more than one call: the operator's word, else its own."""
        if self.parallel_tool_calls == "request":
            return requested is not False
        return self.parallel_tool_calls == "true"
