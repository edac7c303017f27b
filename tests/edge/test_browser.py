"""A page in headless Chromium, from an origin that is not the server's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Play, Told

WELCOME = {
    "status": 204,
    "welcome": True,
    "headers": ["authorization", "content-type", "x-edge-note"],
}


@pytest.fixture
def visits(play: Play, chromium: Path) -> Told:
    return play("browser.mjs", str(chromium))


def words(body: str) -> str:
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_a_page_may_send_its_own_headers_and_reads_the_stream(visits: Told) -> None:
    told = visits["streamed"]
    assert (told["status"], told["type"]) == (200, "text/event-stream; charset=utf-8")
    assert words(told["body"]) == "Hello, wörld 🌍!"
    assert told["body"].endswith("data: [DONE]\n\n")
    assert told["preflights"] == [WELCOME]
    assert told["identified"]  # the page can read the request's id


def test_a_page_reads_the_first_words_while_the_rest_is_not_there_yet(visits: Told) -> None:
    told = visits["first_words"]
    assert told["left"]
    assert words(told["body"]) == "Wait"
    assert "[DONE]" not in told["body"]


def test_a_page_can_read_why_it_was_refused(visits: Told) -> None:
    told = visits["wrong_key"]
    assert told["status"] == 401
    assert json.loads(told["body"])["error"]["code"] == "invalid_api_key"
    assert told["identified"]


def test_a_page_of_an_unknown_origin_is_stopped_before_its_request(visits: Told) -> None:
    told = visits["elsewhere"]
    assert told["failed"] == "page.evaluate: TypeError: Failed to fetch"
    assert told["refusals"] == ["PreflightMissingAllowOriginHeader"]


def test_a_page_of_an_unknown_origin_cannot_read_a_simple_answer(visits: Told) -> None:
    told = visits["elsewhere_simple"]
    assert told["failed"] == "page.evaluate: TypeError: Failed to fetch"
    assert told["refusals"] == ["MissingAllowOriginHeader"]
