"""What holds for the stage that makes calls, whatever goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.ledger import UNEXPLAINED, Ledger
from pipeline.recipe import Pipeline
from pipeline.turn import Tool, Turn
from stages.aggregate_tool_calls import AggregateOptions, AggregateToolCalls
from tests.support.aggregate_parts import (
    HALF,
    KNOWN,
    POLICIES,
    SENTINEL,
    TURN,
    UNKNOWN,
    Policy,
    law,
    play,
)

TAGS: Final = ("<use_tool>", "<", "</use_tool>", "<name>f", "{", " a ", "é🌍", "```\n", "\n```\n")
tokens = st.sampled_from([KNOWN, UNKNOWN, SENTINEL, HALF, *TAGS])
texts = st.lists(tokens, max_size=8).map("".join)
names = st.sampled_from(["f", "g", "other"])
ids = st.sampled_from(["c0", "c1", "c2"])
plain_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(TextDelta, texts, st.sampled_from(["m0", "m1"])),
    st.builds(ToolCall, ids, names, st.just("{}")),
    st.sampled_from([ReasoningDelta("r"), ResponseEnd()]),
)
fragments: st.SearchStrategy[Event] = st.builds(
    ToolCallFragment,
    key=st.sampled_from(["k0", "k1"]),
    call_id=ids | st.just(""),
    name=names | st.just(""),
    arguments=st.sampled_from(["", "{", "}"]),
    done=st.booleans(),
)
ends = st.builds(TurnEnd, st.sampled_from(["stop", "max_output_tokens"]))


@st.composite
def turns(draw: st.DrawFn, events: st.SearchStrategy[Event]) -> list[Event]:
    return [*draw(st.lists(events, max_size=10)), *draw(st.lists(ends, max_size=1))]


@pytest.mark.parametrize("policy", POLICIES)
@law
@given(events=turns(plain_events | fragments | st.just(Failed(Failure("broken")))))
def test_the_books_balance_and_the_end_comes_last(policy: Policy, events: list[Event]) -> None:
    played = play(*events, policy=policy)
    assert all(not isinstance(event, TurnEnd) for event in played.events[:-1])


@law
@given(turns(plain_events))
def test_calls_are_numbered_without_gaps_and_have_ids_of_their_own(events: list[Event]) -> None:
    played = play(*events)
    assert [call.index for call in played.calls] == list(range(len(played.calls)))
    assert len({call.call_id for call in played.calls}) == len(played.calls)


@law
@given(texts, st.lists(st.integers(0, 200), max_size=6))
def test_neither_text_nor_calls_depend_on_the_split(text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = play(TextDelta(text), TurnEnd())
    split = play(*(TextDelta(text[start:end]) for start, end in pairwise(bounds)), TurnEnd())
    assert (split.text, split.named) == (whole.text, whole.named)


@law
@given(turns(plain_events | fragments))
def test_no_text_is_lost_where_no_block_is_a_call(events: list[Event]) -> None:
    played = play(*events, turn=Turn(tools=(Tool("unused"),)))
    assert played.text == "".join(e.text for e in events if isinstance(e, TextDelta))


def test_the_stage_runs_in_a_pipeline() -> None:
    ledger = Ledger()
    pipeline = Pipeline([("calls", lambda: AggregateToolCalls(AggregateOptions("call")))])
    out = pipeline.process([TextDelta(f"a{UNKNOWN}"), TurnEnd()], TURN, ledger=ledger)
    assert [type(event) for event in out] == [TextDelta, ToolCall, TurnEnd]
    assert ledger["calls"].difference == 0
    assert UNEXPLAINED not in ledger["calls"].dropped


def test_a_streamed_argument_is_never_joined_before_its_call_is_whole() -> None:
    """Joining for every piece would make the cost of a call grow with its square."""
    joined: list[int] = []

    class Parts(list[str]):
        def __iter__(self) -> Iterator[str]:
            joined.append(len(self))
            return super().__iter__()

    stage = AggregateToolCalls()
    stage.begin(Turn(tools=(Tool("f"),)))
    stage.feed(ToolCallFragment("k", "c", "f"))
    (call,) = stage._aggregator._calls[0]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    call.parts = Parts()
    for _ in range(1000):
        stage.feed(ToolCallFragment("k", arguments="x"))
    assert joined == []
    (whole,) = stage.feed(ToolCallFragment("k", done=True))
    assert isinstance(whole, ToolCall)
    assert whole.arguments == "x" * 1000
