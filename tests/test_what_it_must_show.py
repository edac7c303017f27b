"""Recorded turns of real Codex binaries, and what a chat client must get from each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from attrs import evolve, frozen

from pipeline.assembly import Settings, chat_options, recipe
from pipeline.errors import ProxyError
from pipeline.events import Event, TextDelta
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson, ChatSse
from sources.replay import Replay

TRANSCRIPTS = Path(__file__).parent.parent / "examples" / "transcripts"
TOOLS = Turn(tools=tuple(Tool(name) for name in ("localSearch", "readNote", "writeToFile")))
NO_TOOLS = Turn()
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 33,
    "total_tokens": 153,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 9},
}

SEARCH = (
    "localSearch",
    '{"query":"meeting notes & todos","salientTerms":["meeting","todo"]}',
)
WRITE = ("writeToFile", '{"path":"notes/a.md","content":"# A <b>bold</b> heading\\n"}')
A, B, C = (
    ("localSearch", '{"query":"a"}'),
    ("readNote", '{"path":"b.md"}'),
    ("localSearch", '{"query":"a"}'),
)
LOOK = ("localSearch", '{"query": "x",  "n": 1.0}')
BLOCK = (
    "<use_tool>\n<name>localSearch</name>\n<query>meeting notes & todos</query>\n"
    '<salientTerms>["meeting","todo"]</salientTerms>\n</use_tool>'
)


@frozen
class Shows:
    """What the answer to a recorded turn holds."""

    content: str | None
    finish: str = "stop"
    calls: tuple[tuple[str, str], ...] = ()
    truncated: bool = False
    reasoning: str | None = None


def recorded(name: str) -> list[Event]:
    return [event for burst in Replay(TRANSCRIPTS / f"{name}.jsonl").events() for event in burst]


def answer(events: list[Event], turn: Turn, settings: Settings | None = None) -> Shows:
    settings = settings or Settings()
    sink = ChatJson(chat_options(settings, turn))
    sink.feed(recipe(settings).process(events, turn))
    result = sink.result()
    (choice,) = result.body["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return Shows(
        message["content"],
        choice["finish_reason"],
        tuple((call["name"], call["arguments"]) for call in calls),
        result.headers["x-codex-tool-call-truncated"] == "true",
        message.get("reasoning_content"),
    )


TABLE: dict[str, tuple[str, Turn, Settings, Shows]] = {
    "text": ("codex-0.166.0/text", NO_TOOLS, Settings(), Shows("Hello, wörld 🌍!")),
    "text of 0.89": ("codex-0.89.0/text", NO_TOOLS, Settings(), Shows("Hello, wörld 🌍!")),
    "a call": (
        "codex-0.166.0/call-interrupted",
        TOOLS,
        Settings(),
        Shows("Let me look.", "tool_calls", (LOOK,)),
    ),
    "a burst": (
        "codex-0.166.0/burst-interrupted-after-last",
        TOOLS,
        Settings(),
        Shows("On it.", "tool_calls", (A, B, C)),
    ),
    "a burst without repeats": (
        "codex-0.166.0/burst-interrupted-after-last",
        TOOLS,
        Settings(tool_block_dedup=True),
        Shows("On it.", "tool_calls", (A, B)),
    ),
    "a burst of two at most": (
        "codex-0.166.0/burst-interrupted-after-last",
        TOOLS,
        Settings(tool_block_max=2),
        Shows("On it.", "tool_calls", (A, B), truncated=True),
    ),
    "a burst, first only": (
        "codex-0.166.0/burst-interrupted-after-last",
        TOOLS,
        Settings(stop_after_tools_mode="first"),
        Shows("On it.", "tool_calls", (A,)),
    ),
    "a cap without a cut": (
        "codex-0.163.0/burst-answered",
        TOOLS,
        Settings(tool_block_max=2, stop_after_tools=False),
        Shows("On it.", "tool_calls", (A, B), truncated=True),
    ),
    "a serialised burst": (
        "codex-0.163.0/burst-serialised-interrupted",
        TOOLS,
        Settings(),
        Shows("On it.", "tool_calls", (A, B, C)),
    ),
    "a serialised burst without repeats": (
        "codex-0.163.0/burst-serialised-interrupted",
        TOOLS,
        Settings(tool_block_dedup=True),
        Shows("On it.", "tool_calls", (A, B)),
    ),
    "a serialised burst of two at most": (
        "codex-0.163.0/burst-serialised-interrupted",
        TOOLS,
        Settings(tool_block_max=2),
        Shows("On it.", "tool_calls", (A, B), truncated=True),
    ),
    "an answered call": (
        "codex-0.166.0/call-answered",
        TOOLS,
        Settings(),
        Shows("Let me look.", "tool_calls", (LOOK,)),
    ),
    "an answered call, nothing cut": (
        "codex-0.166.0/call-answered",
        TOOLS,
        Settings(stop_after_tools=False, suppress_tail_after_tools=False),
        Shows("Let me look.The tool said so.", "tool_calls", (LOOK,)),
    ),
    "an answered call, its tail dropped": (
        "codex-0.166.0/call-answered",
        TOOLS,
        Settings(stop_after_tools=False),
        Shows("Let me look.", "tool_calls", (LOOK,)),
    ),
    "use_tool": (
        "codex-0.166.0/use-tool-text",
        TOOLS,
        Settings(),
        Shows("I'll search your vault.\n\n", "tool_calls", (SEARCH,)),
    ),
    "use_tool of 0.89": (
        "codex-0.89.0/use-tool-text",
        TOOLS,
        Settings(),
        Shows("I'll search your vault.\n\n", "tool_calls", (SEARCH,)),
    ),
    "use_tool without tools": (
        "codex-0.166.0/use-tool-text",
        NO_TOOLS,
        Settings(),
        Shows(f"I'll search your vault.\n\n{BLOCK}\n\nThen I will summarise."),
    ),
    "use_tool of 0.89 without tools": (
        "codex-0.89.0/use-tool-text",
        NO_TOOLS,
        Settings(),
        Shows(f"I'll search your vault.\n\n{BLOCK}\n\nThen I will summarise."),
    ),
    "use_tool for Obsidian": (
        "codex-0.166.0/use-tool-text",
        TOOLS,
        Settings(output_mode="obsidian-xml"),
        Shows(f"I'll search your vault.\n\n{BLOCK}", "tool_calls", (SEARCH,)),
    ),
    "three blocks": (
        "codex-0.166.0/use-tool-text-three-blocks-one-duplicate",
        TOOLS,
        Settings(),
        Shows("Working.\n\n\n", "tool_calls", (SEARCH, WRITE, SEARCH)),
    ),
    "three blocks without repeats": (
        "codex-0.166.0/use-tool-text-three-blocks-one-duplicate",
        TOOLS,
        Settings(tool_block_dedup=True),
        Shows("Working.\n\n\n", "tool_calls", (SEARCH, WRITE)),
    ),
    "a sentinel": (
        "codex-0.166.0/sentinel-text",
        TOOLS,
        Settings(),
        Shows(
            "Looking.\n",
            "tool_calls",
            (("localSearch", '{"query":"x","salientTerms":["a"]}'),),
        ),
    ),
    "an unclosed block": (
        "codex-0.166.0/use-tool-never-closed",
        TOOLS,
        Settings(),
        Shows("Start <use_tool>\n<name>localSearch</name>\n<query>never closed"),
    ),
    "reasoning": (
        "codex-0.166.0/reasoning",
        NO_TOOLS,
        Settings(),
        Shows("42", reasoning="**Thinking** hard"),
    ),
    "reasoning switched off": (
        "codex-0.166.0/reasoning",
        NO_TOOLS,
        Settings(reasoning_content=False),
        Shows("42"),
    ),
    "a retry": (
        "codex-0.166.0/retry-after-partial-text",
        NO_TOOLS,
        Settings(),
        Shows("Hello partial no more"),
    ),
    "MCP noise": ("codex-0.89.0/mcp-noise", TOOLS, Settings(), Shows("The tool said so.")),
    "a call Codex does not know": (
        "codex-0.89.0/undeclared-call",
        TOOLS,
        Settings(),
        Shows("Let me look.", "tool_calls", (LOOK,)),
    ),
    "a burst Codex does not know": (
        "codex-0.89.0/undeclared-burst",
        TOOLS,
        Settings(),
        Shows("On it.", "tool_calls", (A, B, C)),
    ),
    "an answer cut by its limit": (
        "codex-0.166.0/error-EINC",
        NO_TOOLS,
        Settings(),
        Shows("Half", "length"),
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_a_recorded_turn_reads_as_the_table_says(case: tuple[str, Turn, Settings, Shows]) -> None:
    name, turn, settings, shows = case
    assert answer(recorded(name), turn, settings) == shows


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_splitting_its_text_anywhere_changes_nothing(
    case: tuple[str, Turn, Settings, Shows],
) -> None:
    name, turn, settings, shows = case
    events = recorded(name)
    texts = [at for at, event in enumerate(events) if isinstance(event, TextDelta)]
    for at in texts:
        event = events[at]
        assert isinstance(event, TextDelta)
        for cut in range(1, len(event.text)):
            halves = [evolve(event, text=event.text[:cut]), evolve(event, text=event.text[cut:])]
            assert answer([*events[:at], *halves, *events[at + 1 :]], turn, settings) == shows
    single = [
        piece
        for event in events
        for piece in (
            [evolve(event, text=letter) for letter in event.text]
            if isinstance(event, TextDelta)
            else [event]
        )
    ]
    assert answer(single, turn, settings) == shows


@pytest.mark.parametrize("version", ["codex-0.166.0", "codex-0.89.0"])
def test_usage_is_exact(version: str) -> None:
    settings = Settings()
    sink = ChatJson(chat_options(settings, NO_TOOLS))
    sink.feed(recipe(settings).process(recorded(f"{version}/text"), NO_TOOLS))
    assert sink.result().body["usage"] == USAGE


def test_ids_of_structured_calls_are_the_backends() -> None:
    settings = Settings()
    sink = ChatJson(chat_options(settings, TOOLS))
    sink.feed(recipe(settings).process(recorded("codex-0.163.0/burst-answered"), TOOLS))
    calls = sink.result().body["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_a", "call_b", "call_c"]


ERRORS = {
    "E401": (401, "invalid_api_key"),
    "E429": (429, "insufficient_quota"),
    "E500": (500, "server_error"),
    "ECTX": (400, "context_length_exceeded"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_failure_before_the_first_byte_is_a_status_of_its_own(name: str) -> None:
    events = recipe(Settings()).process(recorded(f"codex-0.166.0/error-{name}"))
    with pytest.raises(ProxyError) as raised:
        ChatSse(chat_options(Settings(), NO_TOOLS)).feed(events)
    assert (raised.value.failure.status, raised.value.failure.code) == ERRORS[name]


def frames(data: bytes) -> list[Any]:
    lines = data.decode().removesuffix("\n\n").split("\n\n")
    return [
        line if "[DONE]" in line or line.startswith(":") else msgspec.json.decode(line[6:])
        for line in lines
    ]


def test_a_failure_after_text_is_one_error_frame_and_done() -> None:
    events = recipe(Settings()).process(recorded("codex-0.166.0/error-ECUT"))
    role, text, error, done = frames(ChatSse(chat_options(Settings(), NO_TOOLS)).feed(events))
    assert role["choices"][0]["delta"] == {"role": "assistant"}
    assert text["choices"][0]["delta"] == {"content": "Hello par"}
    assert error["error"]["code"] == "upstream_error"
    assert set(error["error"]) == {"message", "type", "code", "param"}
    assert done == "data: [DONE]"


def test_equal_neighbours_are_all_kept() -> None:
    digits: list[Event] = [TextDelta(digit) for digit in "1000"]
    out = recipe(Settings()).process(digits, TOOLS)
    assert "".join(event.text for event in out if isinstance(event, TextDelta)) == "1000"


def test_a_final_angle_bracket_survives() -> None:
    out = recipe(Settings()).process([TextDelta("1 <")], TOOLS)
    assert "".join(event.text for event in out if isinstance(event, TextDelta)) == "1 <"
