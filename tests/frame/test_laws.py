"""Laws of the whole recipe, over arbitrary event streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.config.settings import Settings
from pipeline.errors import Failure
from pipeline.events import (
    BackendNotice,
    Event,
    Failed,
    ReasoningDelta,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    ToolOutput,
    TurnEnd,
    Usage,
)
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.replay import Listed

PIECES = st.sampled_from(
    [
        "Hello ",
        "<",
        "<use_tool>",
        "<name>search</name>",
        "<name>unknown</name>",
        "<q>x</q>",
        "</use_tool>",
        '<tool_call>{"name":"read"}',
        "</tool_call>",
        '```\n<tool_call>{"id":"call_1","name":"read"}</tool_call>\n',
        "```\n",
        "🌍",
        "\n",
    ]
)
NAMES = st.sampled_from(["search", "read", "unknown", "list_mcp_resources", ""])
IDS = st.sampled_from(["call_1", "call_2", "call_3"])
FAILURES = st.builds(Failed, st.builds(Failure, st.text(max_size=5)))
EVENTS = st.one_of(
    st.builds(TextDelta, PIECES, st.sampled_from(["", "msg_1", "msg_2"])),
    st.builds(ReasoningDelta, PIECES),
    st.builds(ToolCall, IDS, NAMES, st.sampled_from(["{}", '{"q":1}', ""])),
    st.builds(
        ToolCallFragment,
        st.sampled_from(["fc_1", "fc_2"]),
        st.just("") | IDS,
        NAMES,
        PIECES,
        done=st.booleans(),
    ),
    st.builds(ToolOutput, IDS, st.sampled_from(["ok", "unknown MCP server 'x'"])),
    st.builds(Usage, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    st.just(ResponseEnd()),
    st.just(RetryNotice()),
    st.just(BackendNotice("mcp")),
    FAILURES,
    st.builds(TurnEnd, st.sampled_from(["completed", "failed", "max_output_tokens"])),
)
SETTINGS = st.builds(
    Settings,
    stop_after_tools=st.booleans(),
    stop_after_tools_mode=st.sampled_from(["burst", "first"]),
    suppress_tail_after_tools=st.booleans(),
    tool_block_dedup=st.booleans(),
    tool_block_max=st.integers(0, 2),
    unknown_tool_policy=st.sampled_from(["text", "call", "fail"]),
    output_mode=st.sampled_from(["auto", "openai-json", "obsidian-xml"]),
)
TURNS = st.builds(
    Turn,
    tools=st.sampled_from([(), (Tool("search"), Tool("read"))]),
    parallel_tool_calls=st.booleans(),
    stop=st.sampled_from([(), ("Hello",), ("lo H", "🌍"), ("<use", "x</q>")]),
)


@st.composite
def timed(draw: st.DrawFn) -> list[Event]:
    """Events whose stamps never go back."""
    at = 0.0
    events: list[Event] = []
    for event in draw(st.lists(EVENTS, max_size=25)):
        at += draw(st.sampled_from([0.0, 0.0, 0.01, 0.2, 0.4]))
        events.append(attrs.evolve(event, at=at))
    return events


@settings(max_examples=300)
@given(timed(), SETTINGS, TURNS)
def test_whatever_comes_in_what_comes_out_is_legal(
    events: list[Event], chosen: Settings, turn: Turn
) -> None:
    out = assembly.recipe(chosen).process(events, turn)
    ends = [event for event in out if isinstance(event, TurnEnd)]
    assert len(ends) == 1
    assert out[-1] is ends[0]
    calls = [event for event in out if isinstance(event, ToolCall)]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.call_id for call in calls}) == len(calls)
    assert all(call.name and call.arguments for call in calls)
    failures = [event for event in out if isinstance(event, Failed)]
    assert all(failure is out[-2] for failure in failures)
    if chosen.tool_block_max:
        assert len(calls) <= chosen.tool_block_max
    if turn.one_call_only:
        assert len(calls) <= 1


@settings(max_examples=300)
@given(timed(), SETTINGS, TURNS)
def test_every_event_is_emitted_folded_or_dropped_with_a_reason(
    events: list[Event], chosen: Settings, turn: Turn
) -> None:
    ledger = Ledger()
    out = assembly.recipe(chosen).process(events, turn, ledger=ledger)
    for books in ledger:
        assert books.difference == 0, books
        assert UNEXPLAINED not in books.dropped, books
    for before, after in pairwise(ledger.stages):
        assert before.given == after.taken
    assert ledger.stages[-1].given == len(out) == ledger.delivered


@settings(max_examples=100, deadline=None)
@given(timed(), SETTINGS, TURNS, st.lists(st.integers(0, 25), max_size=4), st.booleans())
def test_tasks_and_plain_processing_agree(
    events: list[Event], chosen: Settings, turn: Turn, cuts: list[int], fuse: bool
) -> None:
    edges = [0, *sorted(cuts), len(events)]
    bursts = [events[a:b] for a, b in pairwise(edges)]

    async def main() -> list[Event]:
        ledger = Ledger()
        recipe = assembly.recipe(chosen)
        collected = await recipe.run(Listed(*bursts), Collect(), turn, ledger=ledger, fuse=fuse)
        assert all(books.difference == 0 for books in ledger)
        for before, after in pairwise(ledger.stages):
            assert before.given == after.taken
        assert ledger.delivered == len(collected)
        return collected

    expected = assembly.recipe(chosen).process(events, turn)
    assert trio.run(main) == expected


@settings(max_examples=200)
@given(st.lists(PIECES, max_size=20))
def test_without_tools_text_is_untouched(pieces: list[str]) -> None:
    events: list[Event] = [TextDelta(piece) for piece in pieces]
    out = assembly.recipe(Settings()).process([*events, TurnEnd("completed")])
    assert out == [*events, TurnEnd("completed")]


@settings(max_examples=200)
@given(st.lists(PIECES, max_size=20), st.lists(st.integers(0, 200), max_size=5))
def test_with_tools_the_split_of_the_text_changes_nothing(
    pieces: list[str], cuts: list[int]
) -> None:
    whole = "".join(pieces)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    split = [whole[a:b] for a, b in pairwise(edges) if a < b]
    turn = Turn(tools=(Tool("search"), Tool("read")))

    def run(texts: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        events: list[Event] = [TextDelta(text) for text in texts]
        out = assembly.recipe(Settings()).process([*events, TurnEnd("completed")], turn)
        text = "".join(event.text for event in out if isinstance(event, TextDelta))
        calls = [(event.name, event.arguments) for event in out if isinstance(event, ToolCall)]
        return text, calls

    assert run(split) == run([whole])
