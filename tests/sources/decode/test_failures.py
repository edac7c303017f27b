from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest

from pipeline.errors import Failure, only_member
from sources.decode.failures import (
    codex_failure,
    incomplete_reason,
    responses_failure,
    rpc_failure,
)

Facts: TypeAlias = tuple[int, str, str | None]

QUOTA: Facts = (429, "insufficient_quota", "insufficient_quota")
RATE: Facts = (429, "rate_limit_error", "rate_limit_exceeded")
CONTEXT: Facts = (400, "invalid_request_error", "context_length_exceeded")
REQUEST: Facts = (400, "invalid_request_error", "invalid_request_error")
PROMPT: Facts = (400, "invalid_request_error", "invalid_prompt")
LOGIN: Facts = (401, "invalid_request_error", "invalid_api_key")
MODEL: Facts = (404, "invalid_request_error", "model_not_found")
SERVER: Facts = (500, "server_error", "server_error")
UPSTREAM: Facts = (502, "server_error", "upstream_error")
OVERLOAD: Facts = (503, "server_error", "server_is_overloaded")


def facts(failure: Failure) -> Facts:
    return failure.status, failure.type, failure.code


def snake(camel: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in camel)


# -- what Codex says -------------------------------------------------------------------------------

KINDS: list[tuple[str, Facts]] = [
    ("usageLimitExceeded", QUOTA),
    ("sessionBudgetExceeded", QUOTA),
    ("contextWindowExceeded", CONTEXT),
    ("badRequest", REQUEST),
    ("cyberPolicy", PROMPT),
    ("unauthorized", LOGIN),
    ("serverOverloaded", OVERLOAD),
    ("internalServerError", SERVER),
    ("sandboxError", SERVER),
    ("threadRollbackFailed", SERVER),
    ("other", UPSTREAM),
    ("somethingNew", UPSTREAM),
]

CONNECTION_KINDS = [
    "httpConnectionFailed",
    "responseStreamConnectionFailed",
    "responseStreamDisconnected",
    "responseTooManyFailedAttempts",
]
STATUSES: list[tuple[int | None, Facts]] = [
    (400, REQUEST),
    (401, LOGIN),
    (403, LOGIN),
    (404, MODEL),
    (413, CONTEXT),
    (429, RATE),
    (500, SERVER),
    (502, UPSTREAM),
    (503, OVERLOAD),
    (504, UPSTREAM),
    # SDKs retry these two by themselves, so no client may be given them.
    (408, UPSTREAM),
    (409, UPSTREAM),
    (None, UPSTREAM),
]


@pytest.mark.parametrize(("kind", "expected"), KINDS)
def test_every_kind_of_error_has_its_status_type_and_code(kind: str, expected: Facts) -> None:
    assert facts(codex_failure({"message": "m", "codexErrorInfo": kind})) == expected
    assert facts(codex_failure({"message": "m", "codex_error_info": snake(kind)})) == expected


@pytest.mark.parametrize(("kind", "expected"), KINDS)
def test_a_kind_of_error_may_come_as_an_object(kind: str, expected: Facts) -> None:
    assert facts(codex_failure({"message": "m", "codexErrorInfo": {kind: {}}})) == expected
    assert facts(codex_failure({"message": "m", "codexErrorInfo": {kind: None}})) == expected


@pytest.mark.parametrize(("status", "expected"), STATUSES)
@pytest.mark.parametrize("kind", CONNECTION_KINDS)
def test_a_lost_connection_has_its_http_status(
    kind: str, status: int | None, expected: Facts
) -> None:
    v2 = {"message": "m", "codexErrorInfo": {kind: {"httpStatusCode": status}}}
    v1 = {"message": "m", "codex_error_info": {snake(kind): {"http_status_code": status}}}
    assert facts(codex_failure(v2)) == expected
    assert facts(codex_failure(v1)) == expected


@pytest.mark.parametrize("info", [None, 7, "", [], {}, {"other": "x"}, ["badRequest"]], ids=repr)
def test_an_error_of_no_known_kind_is_the_upstreams(info: object) -> None:
    assert facts(codex_failure({"message": "m", "codexErrorInfo": info})) == UPSTREAM


def test_an_error_without_a_message_still_says_something() -> None:
    assert codex_failure({}).message
    assert responses_failure({}).message
    assert rpc_failure({}).message


def test_a_refused_login_says_what_to_do() -> None:
    failure = codex_failure({"message": "bad key", "codexErrorInfo": "unauthorized"})
    assert failure.message.startswith("bad key")
    assert "codex login" in failure.message


def test_additional_details_are_added_unless_the_message_has_them() -> None:
    error = {"message": "stream cut", "additionalDetails": "after 5 bytes"}
    assert codex_failure(error).message == "stream cut (after 5 bytes)"
    assert codex_failure(error | {"additionalDetails": "cut"}).message == "stream cut"


# -- the upstream's own body -----------------------------------------------------------------------


def upstream(**error: Any) -> Failure:
    body = json.dumps({"error": {"message": "Unsupported value", **error}})
    return codex_failure({"message": body, "codexErrorInfo": "other"})


def test_the_body_of_an_upstream_error_is_read_from_the_message() -> None:
    failure = upstream(type="invalid_request_error", param="reasoning.effort", code=None)
    assert failure == Failure("Unsupported value", *REQUEST, param="reasoning.effort")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("context_length_exceeded", CONTEXT),
        ("model_not_found", MODEL),
        ("rate_limit_exceeded", RATE),
        ("invalid_prompt", PROMPT),
        ("unsupported_value", REQUEST),
    ],
)
def test_the_code_of_an_upstream_error_decides(code: str, expected: Facts) -> None:
    assert facts(upstream(type="invalid_request_error", code=code)) == expected


def test_the_body_may_lack_its_envelope() -> None:
    failure = codex_failure({"message": ' {"message": "too long", "code": "invalid_prompt"}'})
    assert (failure.message, *facts(failure)) == ("too long", *PROMPT)


@pytest.mark.parametrize(
    "message",
    [
        "{",
        '{"error": {}}',
        '{"error": {"message": 7}}',
        '{"detail": "x"}',
        '{"lone": "\ud800"}',
        "{" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=[
        "cut off",
        "without an error",
        "without a text",
        "of another shape",
        "with a lone surrogate",
        "of braces",
        "nested deeply",
    ],
)
def test_a_message_that_only_looks_like_a_body_is_passed_on(message: str) -> None:
    failure = codex_failure({"message": message, "codexErrorInfo": "other"})
    assert (failure.message, *facts(failure)) == (message, *UPSTREAM)


# -- when to come back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Rate limit reached. Please try again in 20s.", 20.0),
        ("Please try again in 1.5m.", 90.0),
        ("try again in 250ms", 0.25),
        ("Try again in 2h", 7200.0),
        ("try again in 5 seconds", 5.0),
        ("Try again later.", None),
        ("try again in a while", None),
    ],
)
def test_the_time_to_wait_is_read_from_the_message(message: str, seconds: float | None) -> None:
    for kind in ("usageLimitExceeded", "serverOverloaded"):
        failure = codex_failure({"message": message, "codexErrorInfo": kind})
        assert failure.retry_after == (None if seconds is None else pytest.approx(seconds))
    failure = responses_failure({"message": message, "code": "rate_limit_exceeded"})
    assert failure.retry_after == (None if seconds is None else pytest.approx(seconds))


def test_an_error_that_waiting_does_not_mend_has_no_time_to_wait() -> None:
    failure = codex_failure({"message": "try again in 20s", "codexErrorInfo": "badRequest"})
    assert failure.retry_after is None


# -- JSON-RPC and Responses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32700, REQUEST),
        (-32600, REQUEST),
        (-32601, REQUEST),
        (-32602, REQUEST),
        (-32603, SERVER),
        (-32001, OVERLOAD),
        (1, SERVER),
        ("-32600", SERVER),
        (None, SERVER),
    ],
)
def test_a_json_rpc_code_has_its_status_type_and_code(code: object, expected: Facts) -> None:
    failure = rpc_failure({"code": code, "message": "said so"})
    assert (failure.message, *facts(failure)) == ("said so", *expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rate_limit_exceeded", RATE),
        ("insufficient_quota", QUOTA),
        ("context_length_exceeded", CONTEXT),
        ("invalid_prompt", PROMPT),
        ("invalid_api_key", LOGIN),
        ("model_not_found", MODEL),
        ("server_error", SERVER),
        ("never_heard_of", UPSTREAM),
        (None, UPSTREAM),
        (429, UPSTREAM),
    ],
)
def test_a_responses_code_has_its_status_type_and_code(code: object, expected: Facts) -> None:
    assert facts(responses_failure({"code": code, "message": "said so"})) == expected


def test_a_responses_error_without_a_code_is_known_by_its_type() -> None:
    error = {"code": None, "type": "invalid_request_error", "message": "m", "param": "input"}
    assert responses_failure(error) == Failure("m", *REQUEST, param="input")


def test_the_body_of_a_failure_is_the_one_every_client_knows() -> None:
    failure = codex_failure({"message": "no more", "codexErrorInfo": "usageLimitExceeded"})
    assert failure.body() == {
        "error": {
            "message": "no more",
            "type": "insufficient_quota",
            "code": "insufficient_quota",
            "param": None,
        }
    }


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Incomplete response returned, reason: max_output_tokens", "max_output_tokens"),
        ("Incomplete response returned, reason: content_filter", "content_filter"),
        ("stream disconnected before completion", None),
    ],
)
def test_an_answer_cut_by_a_limit_is_not_an_error(message: str, reason: str | None) -> None:
    assert incomplete_reason(message) == reason


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("status 401: bad key, url: http://10.0.0.7:4/v1/responses", "status 401: bad key"),
        ("bad key, url: http://a/b, request id: r1", "bad key, request id: r1"),
        ("read the curl: it is fine", "read the curl: it is fine"),
    ],
)
def test_a_client_does_not_see_the_url_of_the_upstream(told: str, shown: str) -> None:
    assert codex_failure({"message": told, "codexErrorInfo": "other"}).message == shown


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "alone"),
    [
        ([ValueError("a")], True),
        ([ExceptionGroup("", [ValueError("a")])], True),
        ([ValueError("a"), ValueError("a")], True),
        ([ValueError("a"), ExceptionGroup("", [ValueError("a")])], True),
        ([ValueError("a"), ValueError("b")], False),
        ([ValueError("a"), KeyError("a")], False),
        ([ExceptionGroup("", [ValueError("a"), TypeError("a")])], False),
    ],
)
def test_a_group_of_equal_errors_is_one_error(members: list[Exception], alone: bool) -> None:
    group = ExceptionGroup("", members)
    told = only_member(group)
    assert (str(told) == "a") if alone else (told is group)
