"""What both Responses sinks share: how an answer is written, and the response object around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

from attrs import field, frozen

from pipeline.errors import Failure
from pipeline.events import Usage
from pipeline.loose_json import Json, as_json, as_list
from pipeline.turn import Tool

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def unique_id(prefix: str) -> str:
    """An id that nobody had before."""
    return f"{prefix}_{uuid4().hex}"


def numbered_ids() -> Callable[[str], str]:
    """Ids that are the same every time, for what is to be compared."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def _now() -> int:
    return int(time.time())


@frozen
class ResponsesOptions:
    """How one answer is written."""

    response_id: str = "resp_0"
    created: int = 0
    echo: Json = field(factory=dict[str, Any])
    """What the response object repeats of the request; what it lacks gets its default."""
    tools: Mapping[str, Tool] = field(factory=dict[str, Tool])
    """The client's tools under the names that calls carry."""
    write_xml: bool = False
    delimiter: str = "\n"
    reasoning: bool = True
    include_encrypted: bool = False
    cut_mode: str = "burst"
    new_id: Callable[[str], str] = unique_id
    now: Callable[[], int] = _now


# The fields that every response has, in order, with what an unasked request gets. Clients built
# from the schema refuse an object that lacks one, and null where the schema has a number.
_DEFAULTS: Final[Json] = {
    "model": "codex",
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
REQUIRED: Final = frozenset(
    {
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "error",
        "incomplete_details",
        "output",
        "usage",
        *_DEFAULTS,
    }
)


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
    return own | echoed(options.echo) | own | result


def echoed(echo: Json) -> dict[str, Any]:
    """The request's side of a response, filled up with defaults."""
    given = {name: value for name, value in echo.items() if value is not None}
    told: dict[str, Any] = {**_DEFAULTS, **given}
    told["tools"] = [_tool(as_json(tool)) for tool in as_list(told["tools"])]
    text = as_json(told["text"])
    told["text"] = {**text, "format": _format(as_json(text.get("format")))}
    told["reasoning"] = {"effort": None, "summary": None, **as_json(told["reasoning"])}
    return told


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _format(wanted: Json) -> Json:
    if wanted.get("type") != "json_schema":
        return wanted or {"type": "text"}
    return {"description": None, "strict": None, **wanted}


def usage_object(spent: Sequence[Usage]) -> dict[str, Any] | None:
    """The exact token counts, summed over upstream responses; None where none were given."""
    if not spent:
        return None
    return {
        "input_tokens": sum(usage.input_tokens for usage in spent),
        "input_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in spent)},
        "output_tokens": sum(usage.output_tokens for usage in spent),
        "output_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in spent)
        },
        "total_tokens": sum(usage.total_tokens for usage in spent),
    }


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


def error_code(failure: Failure) -> str:
    """The code that clients act on: codex repeats a turn on one it does not know."""
    if failure.code in _CODES:
        return failure.code
    if failure.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= failure.status < 500 else "server_error"


def error_message(failure: Failure) -> str:
    """What went wrong; how long to wait is read from these words, there is no field for it."""
    message, wait = failure.message, failure.retry_after
    if wait is None or "try again in" in message.lower():
        return message
    return f"{message.rstrip('. ')}. Please try again in {wait:g}s."


def error_event(failure: Failure) -> dict[str, Any]:
    """The last word of a stream that failed: some clients read only this."""
    error = {
        "type": failure.type,
        "code": error_code(failure),
        "message": error_message(failure),
        "param": failure.param,
    }
    told = {name: error[name] for name in ("code", "message", "param")}
    return {"type": "error", **told, "error": error}
