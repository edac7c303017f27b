"""Converts an HTTP backend's error responses to Failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from math import isfinite
from typing import Final

from attrs import evolve

from pipeline.errors import Failure
from pipeline.formats.transcripts import parse_line
from pipeline.loose_json import Json, as_json, as_list, is_json, text_of
from sources.decode.failures import responses_failure

KEY_HINT: Final = "the backend rejected the key: set PROXY_BACKEND_API_KEY to a valid one"
ADDRESS_HINT: Final = (
    "its address should be one that /responses can be added to, such as http://localhost:8000/v1"
)
_CODES: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "invalid_api_key",
    403: "invalid_api_key",
    404: "model_not_found",
    413: "context_length_exceeded",
    422: "invalid_request_error",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "server_is_overloaded",
    529: "server_is_overloaded",
}
"""The error code of the Responses API for each status; others are upstream errors."""
_QUOTA: Final = frozenset({"usage_limit_reached", "usage_not_included"})
"""Codes of Codex's backend for a plan that is used up."""
_SPACES: Final = re.compile(r"\s+")


def http_failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure of an error response: by its status, refined by its body.

    The names of headers must be in lower case.
    """
    error = _error_object(body)
    message = text_of(error.get("message")) or _reason(status, headers, body)
    own_code = text_of(error.get("code")) or text_of(error.get("type"))
    failure = responses_failure(
        {
            "code": _code(status, own_code),
            "message": message,
            "param": error.get("param"),
        }
    )
    if failure.status == 401:
        return evolve(failure, message=f"{message} ({KEY_HINT})")
    if failure.status == 400 and text_of(error.get("code")):
        return evolve(failure, code=text_of(error.get("code")))
    if failure.status in (429, 503):
        after = _retry_after(headers, error)
        return failure if after is None else evolve(failure, retry_after=after)
    return failure


def upstream_failure(message: str) -> Failure:
    """The failure of a backend that did not answer."""
    return Failure(message, status=502, type="server_error", code="upstream_error")


def excerpt(text: str, longest: int = 100) -> str:
    """The beginning of a text on one line, for an error message."""
    words = _SPACES.sub(" ", text[: 4 * longest]).strip()
    shown = "".join(letter for letter in words if letter.isprintable())
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def _code(status: int, own: str) -> str:
    """The code by status, or the backend's own code if it agrees with the status."""
    usual = _CODES.get(status, "upstream_error")
    own = "insufficient_quota" if own in _QUOTA else own
    return own if _meant_by(own) == _meant_by(usual) else usual


def _meant_by(code: str) -> int:
    return responses_failure({"code": code}).status


def _error_object(body: bytes) -> Json:
    """The error object of a body, in any known shape; empty if there is none."""
    try:
        found: object = parse_line(body)
    except ValueError:
        return {}
    outer = as_json(next(iter(as_list(found)), found))
    error = outer.get("error", outer.get("detail", outer))
    if isinstance(error, str):
        return {**outer, "message": error}
    first = next(iter(as_list(error)), error)  # a list of what was wrong, each with `msg`
    inner = as_json(first)
    if "message" not in inner and isinstance(inner.get("msg"), str):
        return {**inner, "message": inner["msg"]}
    return inner if is_json(first) else {}


def _reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    if 300 <= status < 400:
        target = headers.get("location", "elsewhere")
        return f"the backend answered {phrase}, to {target}: give it that address instead"
    if status == 404:
        return (
            f"the backend answered {phrase}: it has no such model, or nothing at this address; "
            f"{ADDRESS_HINT}"
        )
    shown = (
        ""
        if "html" in headers.get("content-type", "")
        else excerpt(body.decode("utf-8", "replace"))
    )
    return f"the backend answered {phrase}" + (f": {shown}" if shown else "")


def _retry_after(headers: Mapping[str, str], error: Json) -> float | None:
    """Seconds until a retry: from the headers, else from the error."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""), 0.001)
    if milliseconds is not None:
        return milliseconds
    value = headers.get("retry-after", "")
    seconds = _seconds(value, 1.0)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return _seconds(error.get("resets_in_seconds"), 1.0)


def _seconds(value: object, unit: float) -> float | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        seconds = float(value) * unit
    except (ValueError, OverflowError):
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None
