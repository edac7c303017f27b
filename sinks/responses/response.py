"""The response object, and how it and a stream report a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from pipeline.errors import Failure
from pipeline.loose_json import Json
from sinks.responses.options import ResponsesOptions

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def response_object(  # noqa: PLR0913
    options: ResponsesOptions,
    status: Status,
    *,
    output: Sequence[Json] = (),
    usage: Json | None = None,
    error: Json | None = None,
    incomplete: str | None = None,
    completed_at: int | None = None,
) -> dict[str, Any]:
    """A whole response: fields may be null, and none is ever absent."""
    own: dict[str, Any] = {
        "id": options.response_id,
        "object": "response",
        "created_at": options.created,
        "completed_at": completed_at,
        "status": status,
        "error": error,
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
    }
    result = {"output": list(output), "usage": usage}
    return {**own, **options.echo, **own, **result}


# -- failures --------------------------------------------------------------------------------------

_CODES: Final = frozenset(
    {
        "invalid_prompt",
        "context_length_exceeded",
        "insufficient_quota",
        "rate_limit_exceeded",
        "server_error",
    }
)


def error_object(failure: Failure) -> dict[str, Any]:
    """The error of a response that failed, under a code that clients act on."""
    return {"code": _code(failure), "message": _message(failure)}


def error_event(failure: Failure) -> dict[str, Any]:
    """The last event of a stream that failed: some clients read only this."""
    error = {**error_object(failure), "param": failure.param}
    return {"type": "error", **error, "error": {"type": failure.type, **error}}


def _code(failure: Failure) -> str:
    """Codex repeats a turn on a code that it does not know."""
    if failure.code in _CODES:
        return failure.code
    if failure.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= failure.status < 500 else "server_error"


def _message(failure: Failure) -> str:
    """What went wrong; how long to wait is read from these words, there is no field for it."""
    message, wait = failure.message, failure.retry_after
    if wait is None or "try again in" in message.lower():
        return message
    return f"{message.rstrip('. ')}. Please try again in {wait:g}s."
