from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, TypeAlias

import pytest

from sources.decode.http_failures import KEY_HINT, excerpt, http_failure

Facts: TypeAlias = tuple[int, str, str | None]

JSON_TYPE = {"content-type": "application/json"}
REQUEST: Facts = (400, "invalid_request_error", "invalid_request_error")
LOGIN: Facts = (401, "invalid_request_error", "invalid_api_key")
MODEL: Facts = (404, "invalid_request_error", "model_not_found")
CONTEXT: Facts = (400, "invalid_request_error", "context_length_exceeded")
RATE: Facts = (429, "rate_limit_error", "rate_limit_exceeded")
QUOTA: Facts = (429, "insufficient_quota", "insufficient_quota")
SERVER: Facts = (500, "server_error", "server_error")
UPSTREAM: Facts = (502, "server_error", "upstream_error")
OVERLOAD: Facts = (503, "server_error", "server_is_overloaded")


def facts(status: int, body: bytes = b"", **headers: str) -> Facts:
    failure = http_failure(status, headers, body)
    return failure.status, failure.type, failure.code


def error(**fields: Any) -> bytes:
    return json.dumps({"error": {"message": "no", **fields}}).encode()


STATUSES: list[tuple[int, Facts]] = [
    (301, UPSTREAM),
    (400, REQUEST),
    (401, LOGIN),
    (402, UPSTREAM),
    (403, LOGIN),
    (404, MODEL),
    (405, UPSTREAM),
    # SDKs retry these two by themselves, so no client may be given them.
    (408, UPSTREAM),
    (409, UPSTREAM),
    (413, CONTEXT),
    (422, REQUEST),
    (429, RATE),
    (500, SERVER),
    (502, UPSTREAM),
    (503, OVERLOAD),
    (504, UPSTREAM),
    (529, OVERLOAD),
    (599, UPSTREAM),
]


@pytest.mark.parametrize(("status", "expected"), STATUSES)
def test_every_status_has_its_place_in_the_family(status: int, expected: Facts) -> None:
    assert facts(status) == expected
    assert facts(status, error(code=None, type="unheard_of")) == expected


REFINED: list[tuple[int, bytes, Facts]] = [
    (400, error(code="context_length_exceeded"), CONTEXT),
    (400, error(code="unheard_of"), (400, "invalid_request_error", "unheard_of")),
    (400, error(code=400, type="BadRequestError"), REQUEST),
    (429, error(code="insufficient_quota"), QUOTA),
    (429, error(type="insufficient_quota", code=None), QUOTA),
    (429, error(type="usage_limit_reached"), QUOTA),
    (429, error(code="usage_not_included"), QUOTA),
    # The status knows better than a word that contradicts it.
    (404, error(code=None, type="invalid_request_error"), MODEL),
    (401, error(code=None, type="invalid_request_error"), LOGIN),
    (500, error(code="rate_limit_exceeded"), SERVER),
    (502, error(code="upstream_error"), UPSTREAM),
    (418, error(code="invalid_request_error"), UPSTREAM),
]


@pytest.mark.parametrize(("status", "body", "expected"), REFINED)
def test_the_body_refines_what_the_status_says(status: int, body: bytes, expected: Facts) -> None:
    assert facts(status, body) == expected


def test_a_bad_request_keeps_the_message_of_the_backend() -> None:
    body = error(message="Unknown parameter: 'foo'.", param="foo", code="unknown_parameter")
    failure = http_failure(400, JSON_TYPE, body)
    assert failure.message == "Unknown parameter: 'foo'."
    assert failure.param == "foo"
    assert failure.code == "unknown_parameter"


def test_a_refused_key_is_said_to_be_ours() -> None:
    failure = http_failure(401, JSON_TYPE, error(message="bad key"))
    assert failure.message == f"bad key ({KEY_HINT})"


BODIES: list[tuple[bytes, str]] = [
    (b'{"error": "model is loading"}', "model is loading"),
    (b'{"detail": "Not allowed"}', "Not allowed"),
    (b'{"detail": [{"loc": ["body", "input"], "msg": "Field required"}]}', "Field required"),
    (b'[{"error": {"code": 400, "message": "bad"}}]', "bad"),
    (b'{"object": "error", "message": "bad", "code": 400}', "bad"),
    (b'{"message": "bad"}', "bad"),
    (b"no such\n  model", "the backend answered 400 Bad Request: no such model"),
    (b"", "the backend answered 400 Bad Request"),
    (b"{}", "the backend answered 400 Bad Request: {}"),
    (b'{"error": 7}', 'the backend answered 400 Bad Request: {"error": 7}'),
    (b"\xff\x00", "the backend answered 400 Bad Request: \ufffd"),
    (b"[" * 100_000, "the backend answered 400 Bad Request: " + "[" * 100 + "…"),
]


@pytest.mark.parametrize(("body", "expected"), BODIES, ids=[repr(b[0][:30]) for b in BODIES])
def test_the_message_is_found_in_whatever_shape(body: bytes, expected: str) -> None:
    assert http_failure(400, {}, body).message == expected


def test_a_web_page_is_not_shown() -> None:
    failure = http_failure(502, {"content-type": "text/html"}, b"<html>nginx</html>")
    assert failure.message == "the backend answered 502 Bad Gateway"


def test_an_unknown_status_is_shown_as_a_number() -> None:
    assert http_failure(599, {}, b"").message == "the backend answered 599"


def test_a_redirection_names_its_target() -> None:
    failure = http_failure(307, {"location": "https://elsewhere/v1/responses"}, b"")
    assert "https://elsewhere/v1/responses" in failure.message


def test_an_error_for_a_wrong_address_shows_a_right_one() -> None:
    assert "http://localhost:8000/v1" in http_failure(404, {}, b"Not Found").message


# -- when to come back -----------------------------------------------------------------------------


RETRIES: list[tuple[dict[str, str], bytes, float | None]] = [
    ({"retry-after": "7"}, b"", 7.0),
    ({"retry-after": "0"}, error(message="Please try again in 20s."), 0.0),
    ({"retry-after": "0.5"}, b"", 0.5),
    ({"retry-after": "9", "retry-after-ms": "1500"}, b"", 1.5),
    ({}, error(message="Please try again in 20s."), 20.0),
    ({"retry-after": "7"}, error(message="Please try again in 20s."), 7.0),
    ({}, error(type="usage_limit_reached", resets_in_seconds=3600), 3600.0),
    ({}, error(), None),
    ({"retry-after": "soon"}, b"", None),
    ({"retry-after": "-1"}, b"", None),
    ({"retry-after": "nan"}, b"", None),
    ({"retry-after": "inf"}, b"", None),
    ({}, error(resets_in_seconds=True), None),
    ({}, error(resets_in_seconds=10**400), None),
]


@pytest.mark.parametrize(("headers", "body", "expected"), RETRIES)
def test_a_client_over_a_limit_learns_when_to_retry(
    headers: dict[str, str], body: bytes, expected: float | None
) -> None:
    assert http_failure(429, headers, body).retry_after == expected


def test_a_date_to_come_back_at_is_a_time_from_now() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    after = http_failure(503, {"retry-after": soon}, b"").retry_after
    assert after == pytest.approx(90, abs=5)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert http_failure(503, {"retry-after": past}, b"").retry_after == 0.0
    assert http_failure(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00"}, b"").retry_after is None


def test_only_retryable_errors_say_when_to_retry() -> None:
    assert http_failure(500, {"retry-after": "7"}, b"").retry_after is None


def test_an_excerpt_is_one_short_line_that_can_be_printed() -> None:
    assert excerpt("a\r\n\tb\x1b[31m\x00c") == "a b[31mc"
    assert excerpt("x" * 101) == "x" * 100 + "…"
