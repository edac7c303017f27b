"""Which pages may call."""

from __future__ import annotations

import pytest
from werkzeug.datastructures import Headers

from pipeline.assembly import Settings
from pipeline.errors import ProxyError
from pipeline.serve.access.origins import Origins

USUAL = Settings().cors_origins


@pytest.mark.parametrize(
    ("allowed", "origin", "may"),
    [
        (USUAL, "app://obsidian.md", True),
        (USUAL, "capacitor://localhost", True),
        (USUAL, "http://localhost", True),
        (USUAL, "http://localhost:5173", True),
        (USUAL, "https://localhost:5173", False),
        (USUAL, "http://localhost.example.org", False),
        (USUAL, "http://localhost:80@example.org", False),
        (USUAL, "http://localhost:x", False),
        (USUAL, "http://example.org", False),
        (USUAL, "null", False),
        ("*", "http://example.org", True),
        ("https://a.example:8443", "https://a.example:8443", True),
        ("https://a.example:8443", "https://a.example:9443", False),
        ("https://A.example/", "https://a.example", True),
        ("", "http://localhost", False),
    ],
)
def test_an_origin_is_allowed_or_not(allowed: str, origin: str, may: bool) -> None:
    assert Origins(allowed).allows(origin) is may


def test_every_header_that_is_asked_for_may_be_sent() -> None:
    answer = Headers()
    asked = Headers(
        {
            "Access-Control-Request-Headers": "x-stainless-os, authorization",
            "Access-Control-Request-Private-Network": "true",
        }
    )
    Origins(USUAL).preflight("http://localhost:3000", asked, answer)
    assert answer["Access-Control-Allow-Headers"] == "x-stainless-os, authorization"
    assert answer["Access-Control-Allow-Private-Network"] == "true"
    assert "POST" in answer["Access-Control-Allow-Methods"]


def test_other_origins_get_no_headers() -> None:
    answer = Headers()
    Origins(USUAL).preflight("http://example.org", Headers(), answer)
    Origins(USUAL).answer("http://example.org", answer)
    assert answer.to_wsgi_list() == [("Vary", "Origin")]


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        (None, "127.0.0.1:11435", True),
        (None, "localhost", True),
        (None, "[::1]:11435", True),
        ("http://localhost:3000", "localhost:11435", True),
        ("http://example.org", "localhost:11435", False),
        ("null", "localhost:11435", False),
        (None, "rebound.example.org:11435", False),
        (None, "127.0.0.1.example.org", False),
        (None, "", False),
        (None, "[", False),
    ],
)
def test_without_keys_only_our_own_pages_and_names_get_in(
    origin: str | None, host: str, may: bool
) -> None:
    origins = Origins(USUAL)
    if may:
        origins.check(origin, host)
        return
    with pytest.raises(ProxyError) as refused:
        origins.check(origin, host)
    assert refused.value.failure.status == 403
