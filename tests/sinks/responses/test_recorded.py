"""Recorded turns of real Codex binaries, and what a client of the Responses API gets from each."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from attrs import evolve

from pipeline.assembly import Settings, recipe, responses_options
from pipeline.errors import ProxyError
from pipeline.events import Event
from pipeline.turn import Turn
from sinks.responses import ResponsesBody, ResponsesJson, ResponsesSse, numbered_ids
from tests.support.responses_automaton import check_stream
from tests.test_what_it_must_show import (
    BLOCK,
    LOOK,
    SEARCH,
    TABLE,
    TOOLS,
    TRANSCRIPTS,
    WRITE,
    A,
    B,
    C,
    Shows,
    recorded,
)

Item: TypeAlias = tuple[str, ...]


def answered(
    events: list[Event], turn: Turn, settings: Settings
) -> tuple[bytes, ResponsesBody | None]:
    """The stream of a turn, and its body; no bytes and no body where it was refused."""
    turn = settings.on_responses(turn)
    out = recipe(settings).process(events, turn)
    options = responses_options(settings, turn, created=0, include_encrypted=True)
    options = evolve(options, now=lambda: 1)
    sink = ResponsesJson(evolve(options, new_id=numbered_ids()))
    sink.feed(out)
    encoder = ResponsesSse(evolve(options, new_id=numbered_ids()))
    try:
        stream = encoder.feed(out)
    except ProxyError:
        stream = b""
    try:
        return stream, sink.result()
    except ProxyError:
        return stream, None


def items(response: dict[str, Any]) -> list[Item]:
    """Every item of a response as its kind and what it says, in order."""
    return [_item(item) for item in response["output"]]


def _item(item: dict[str, Any]) -> Item:
    match item["type"]:
        case "message":
            return ("message", item["content"][0]["text"])
        case "reasoning":
            summary = [part["text"] for part in item["summary"]]
            return ("reasoning", item["id"], *summary, item["encrypted_content"])
        case kind:
            return (kind, item["name"], item["arguments"])


def says(text: str) -> Item:
    return ("message", text)


def calls(*made: tuple[str, str]) -> list[Item]:
    return [("function_call", name, arguments) for name, arguments in made]


GOLDEN: dict[str, tuple[str, list[Item]]] = {
    "codex-0.163.0/burst-answered": ("completed", [says("On it."), *calls(A, B, C)]),
    "codex-0.163.0/burst-serialised-interrupted": ("completed", [says("On it."), *calls(A, B, C)]),
    "codex-0.166.0/burst-interrupted-after-last": ("completed", [says("On it."), *calls(A, B, C)]),
    "codex-0.166.0/call-answered": ("completed", [says("Let me look."), *calls(LOOK)]),
    "codex-0.166.0/call-interrupted": ("completed", [says("Let me look."), *calls(LOOK)]),
    "codex-0.166.0/error-E401": ("refused", []),
    "codex-0.166.0/error-E429": ("refused", []),
    "codex-0.166.0/error-E500": ("refused", []),
    "codex-0.166.0/error-ECTX": ("refused", []),
    "codex-0.166.0/error-ECUT": ("failed", [says("Hello par")]),
    "codex-0.166.0/error-EINC": ("incomplete", [says("Half")]),
    "codex-0.166.0/reasoning": (
        "completed",
        [("reasoning", "rs_1", "**Thinking** hard", "gAAAA"), says("42")],
    ),
    "codex-0.166.0/retry-after-partial-text": ("completed", [says("Hello partial no more")]),
    "codex-0.166.0/sentinel-text": (
        "completed",
        [says("Looking.\n"), *calls(("localSearch", '{"query":"x","salientTerms":["a"]}'))],
    ),
    "codex-0.166.0/text": ("completed", [says("Hello, wörld 🌍!")]),
    "codex-0.166.0/use-tool-never-closed": (
        "completed",
        [says("Start <use_tool>\n<name>localSearch</name>\n<query>never closed")],
    ),
    "codex-0.166.0/use-tool-text-three-blocks-one-duplicate": (
        "completed",
        [
            says("Working.\n"),
            *calls(SEARCH),
            says("\n"),
            *calls(WRITE),
            says("\n"),
            *calls(SEARCH),
        ],
    ),
    "codex-0.166.0/use-tool-text": (
        "completed",
        [says("I'll search your vault.\n\n"), *calls(SEARCH)],
    ),
    "codex-0.89.0/mcp-noise": ("completed", [says("The tool said so.")]),
    "codex-0.89.0/text": ("completed", [says("Hello, wörld 🌍!")]),
    "codex-0.89.0/undeclared-burst": ("completed", [says("On it."), *calls(A, B, C)]),
    "codex-0.89.0/undeclared-call": ("completed", [says("Let me look."), *calls(LOOK)]),
    "codex-0.89.0/use-tool-text": (
        "completed",
        [says("I'll search your vault.\n\n"), *calls(SEARCH)],
    ),
}


def test_every_recorded_turn_is_in_the_table() -> None:
    found = {str(path.relative_to(TRANSCRIPTS))[:-6] for path in TRANSCRIPTS.rglob("*.jsonl")}
    assert set(GOLDEN) == found


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recorded_turn_is_these_items(name: str) -> None:
    status, expected = GOLDEN[name]
    stream, result = answered(recorded(name), TOOLS, Settings())
    if status == "refused":
        assert (stream, result) == (b"", None)
        return
    response = check_stream(stream)
    assert (response["status"], items(response)) == (status, expected)
    if status == "failed":
        assert result is None
    else:
        assert result is not None
        assert result.body == response


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_a_recorded_turn_reads_as_it_does_in_chat(
    case: tuple[str, Turn, Settings, Shows],
) -> None:
    name, turn, settings, shows = case
    stream, result = answered(recorded(name), turn, settings)
    assert result is not None
    assert check_stream(stream) == result.body
    found = items(result.body)
    thoughts = [part for kind, *parts in found if kind == "reasoning" for part in parts[1:-1]]
    made = tuple((name, written) for kind, name, *rest in found for written in rest[:1]
                 if kind == "function_call")  # fmt: skip
    read = Shows(
        "".join(item[1] for item in found if item[0] == "message"),
        {"completed": "tool_calls" if made else "stop", "incomplete": "length"}[
            result.body["status"]
        ],
        made,
        result.headers["x-codex-tool-call-truncated"] == "true",
        "\n\n".join(thoughts) or None,
    )
    assert read == shows


def test_the_output_mode_of_this_api_is_its_own() -> None:
    events = recorded("codex-0.166.0/use-tool-text")
    text = f"I'll search your vault.\n\n{BLOCK}"
    for settings in (
        Settings(responses_output_mode="obsidian-xml"),
        Settings(output_mode="obsidian-xml"),
    ):
        _, result = answered(events, TOOLS, settings)
        assert result is not None
        assert items(result.body) == [says(text), *calls(SEARCH)]
    settings = Settings(output_mode="obsidian-xml", responses_output_mode="openai-json")
    _, result = answered(events, TOOLS, settings)
    assert result is not None
    assert items(result.body) == [says("I'll search your vault.\n\n"), *calls(SEARCH)]


def test_a_requests_own_output_mode_wins() -> None:
    settings = Settings(responses_output_mode="obsidian-xml")
    turn = evolve(TOOLS, output_mode="openai-json")
    assert not responses_options(settings, turn).write_xml
    assert settings.on_responses(turn).output_mode == "openai-json"
    assert settings.on_responses(TOOLS).output_mode == "obsidian-xml"
    assert Settings().on_responses(TOOLS).output_mode is None
