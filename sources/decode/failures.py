"""Converts the backend's errors to Failures."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from pipeline.errors import Failure
from pipeline.loose_json import Json, as_json, text_of

_BY_KIND: Final[dict[str, tuple[int, str, str]]] = {
    "usagelimitexceeded": (429, "insufficient_quota", "insufficient_quota"),
    "sessionbudgetexceeded": (429, "insufficient_quota", "insufficient_quota"),
    "ratelimitexceeded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "contextwindowexceeded": (400, "invalid_request_error", "context_length_exceeded"),
    "contextlengthexceeded": (400, "invalid_request_error", "context_length_exceeded"),
    "badrequest": (400, "invalid_request_error", "invalid_request_error"),
    "invalidprompt": (400, "invalid_request_error", "invalid_prompt"),
    "invalidrequesterror": (400, "invalid_request_error", "invalid_request_error"),
    "cyberpolicy": (400, "invalid_request_error", "invalid_prompt"),
    "unauthorized": (401, "invalid_request_error", "invalid_api_key"),
    "invalidapikey": (401, "invalid_request_error", "invalid_api_key"),
    "modelnotfound": (404, "invalid_request_error", "model_not_found"),
    "insufficientquota": (429, "insufficient_quota", "insufficient_quota"),
    "usagelimitreached": (429, "insufficient_quota", "insufficient_quota"),
    "overloadederror": (503, "server_error", "server_is_overloaded"),
    "serverisoverloaded": (503, "server_error", "server_is_overloaded"),
    "serveroverloaded": (503, "server_error", "server_is_overloaded"),
    "internalservererror": (500, "server_error", "server_error"),
    "servererror": (500, "server_error", "server_error"),
    "sandboxerror": (500, "server_error", "server_error"),
    "threadrollbackfailed": (500, "server_error", "server_error"),
}
_UPSTREAM: Final = (502, "server_error", "upstream_error")
_BY_STATUS: Final[dict[int, tuple[int, str, str]]] = {
    400: _BY_KIND["badrequest"],
    401: _BY_KIND["unauthorized"],
    403: _BY_KIND["unauthorized"],
    404: _BY_KIND["modelnotfound"],
    413: _BY_KIND["contextwindowexceeded"],
    429: _BY_KIND["ratelimitexceeded"],
    500: _BY_KIND["internalservererror"],
    503: _BY_KIND["serveroverloaded"],
}
_BY_RPC_CODE: Final[dict[int, tuple[int, str, str]]] = {
    -32700: _BY_KIND["badrequest"],
    -32600: _BY_KIND["badrequest"],
    -32601: _BY_KIND["badrequest"],
    -32602: _BY_KIND["badrequest"],
    -32603: _BY_KIND["internalservererror"],
    -32001: _BY_KIND["serveroverloaded"],
}
_RETRYABLE: Final = frozenset({429, 503})
_STATUS: Final = re.compile(r"unexpected status (\d{3})\b")
_INCOMPLETE: Final = re.compile(r"Incomplete response returned, reason: (\w+)")
_ADDRESS: Final = re.compile(r", url: \S+?(?=[,;)]|\s|$)")
"""The URL of the backend's upstream, which clients must not see."""
_TRY_AGAIN: Final = re.compile(
    r"try again in ((?:\d{1,9}(?:\.\d{1,9})? ?(?:ms|s|m|h) ?)+)", re.IGNORECASE
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def incomplete_reason(message: str) -> str | None:
    """Codex reports an answer cut by a limit as an error; for a client it is a finish reason."""
    found = _INCOMPLETE.search(message)
    return found[1] if found else None


def codex_failure(error: Json) -> Failure:
    """The failure of a `TurnError`: `{message, codexErrorInfo}`, in either spelling."""
    message = text_of(error.get("message")) or "the backend failed without saying why"
    info: Any = error.get("codexErrorInfo", error.get("codex_error_info"))
    if (details := text_of(error.get("additionalDetails"))) and details not in message:
        message = f"{message} ({details})"
    kind, status = _kind_and_status(info)
    if kind not in _BY_KIND and status is None and (found := _STATUS.search(message)):
        status = int(found[1])  # 0.89 has it only in the message
    if kind in _BY_KIND or status is not None:
        known = _BY_KIND.get(kind) or _BY_STATUS.get(status or 0, _UPSTREAM)
        if known[0] == 401:
            message = f"{message} (the backend's own login was rejected: run `codex login`)"
        return _failure(known, message)
    return _upstream_body(message) or _failure(_UPSTREAM, message)


def responses_failure(error: Json) -> Failure:
    """The failure of a Responses `error` object: `{code, message, param}`."""
    message = text_of(error.get("message")) or "the backend failed without saying why"
    kind = _plain(text_of(error.get("code")) or text_of(error.get("type")))
    param = text_of(error.get("param")) or None
    return _failure(_BY_KIND.get(kind, _UPSTREAM), message, param)


def rpc_failure(error: Json) -> Failure:
    """The failure of a JSON-RPC error."""
    code = error.get("code")
    message = text_of(error.get("message")) or f"the backend answered with error {code}"
    known = _BY_RPC_CODE.get(code) if isinstance(code, int) else None
    return _failure(known or _BY_KIND["internalservererror"], message)


def _kind_and_status(info: object) -> tuple[str, int | None]:
    """`"usageLimitExceeded"`, or `{"httpConnectionFailed": {"httpStatusCode": 401}}`."""
    if isinstance(info, str):
        return _plain(info), None
    for kind, detail in as_json(info).items():
        fields = as_json(detail)
        status = fields.get("httpStatusCode", fields.get("http_status_code"))
        return _plain(str(kind)), status if isinstance(status, int) else None
    return "", None


def _plain(word: str) -> str:
    return word.replace("_", "").lower()


def _upstream_body(message: str) -> Failure | None:
    """An upstream 400 arrives as the upstream's own error body, written as a string."""
    if not message.lstrip().startswith("{"):
        return None
    try:
        body = as_json(msgspec.json.decode(message.encode()))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    error = as_json(body.get("error")) or body
    if not text_of(error.get("message")):
        return None
    found = responses_failure(error)
    if found.status != 502:
        return found
    return _failure(_BY_KIND["badrequest"], found.message, found.param)


def _failure(known: tuple[int, str, str], message: str, param: str | None = None) -> Failure:
    status, kind, code = known
    retry_after = _retry_after(message) if status in _RETRYABLE else None
    return Failure(_ADDRESS.sub("", message), status, kind, code, param, retry_after)


def _retry_after(message: str) -> float | None:
    found = _TRY_AGAIN.search(message)
    if found is None:
        return None
    return sum(float(n) * _SECONDS[unit.lower()] for n, unit in _DURATION.findall(found[1]))
