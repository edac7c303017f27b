"""Every origin of a call, at every pace, through the whole recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import trio
import trio.testing
from attrs import evolve

from pipeline.assembly import Settings, recipe
from pipeline.events import (
    Event,
    ReasoningDelta,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
    TurnStart,
    Usage,
)
from pipeline.stage import Send
from pipeline.tasks import SendingSource
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from tests.support.raw_http import COMPLETED, delta, hear, http, says

GAPS = (0.0, 0.2, 0.6, 2.0, 10.0)
TURN = Turn(tools=(Tool("look"),))
COST = Usage(10, 5, 15)


def structured(number: int) -> list[Event]:
    return [ToolCall(f"call_{number}", "look", f'{{"n": {number}}}', index=number)]


def streamed(number: int) -> list[Event]:
    key = f"item_{number}"
    return [
        ToolCallFragment(key, call_id=f"call_{number}", name="look"),
        ToolCallFragment(key, arguments='{"n": '),
        ToolCallFragment(key, arguments=f"{number}}}"),
        ToolCallFragment(key, whole=f'{{"n": {number}}}', done=True),
    ]


def use_tool(number: int) -> list[Event]:
    block = f"<use_tool>\n<name>look</name>\n<n>{number}</n>\n</use_tool>\n"
    return [TextDelta(block[:20]), TextDelta(block[20:40]), TextDelta(block[40:])]


def sentinel(number: int) -> list[Event]:
    block = f'<tool_call>{{"name": "look", "arguments": {{"n": {number}}}}}</tool_call>\n'
    return [TextDelta(block[:15]), TextDelta(block[15:])]


ORIGINS = {
    "structured": structured,
    "streamed": streamed,
    "use_tool": use_tool,
    "sentinel": sentinel,
}


def slowly(origin: str, calls: int, gap: float, where: str) -> Iterator[Event]:
    """So many calls, with a silence before, between or inside of them."""
    at = 0.0
    yield TurnStart("told")
    for number in range(calls):
        if where == "before" or (where == "between" and number):
            at += gap
            if number and origin == "structured":
                yield ReasoningDelta("hm", at=at - gap / 2)
        for place, event in enumerate(ORIGINS[origin](number)):
            if place and where == "inside":
                at += gap
            yield evolve(event, at=at)
    yield evolve(COST, at=at + gap)
    yield ResponseEnd(at=at + gap)
    yield TextDelta("the next response", at=at + gap)
    yield TurnEnd("completed", at=at + gap)


def check(events: Sequence[Event], calls: int) -> None:
    made = [event for event in events if isinstance(event, ToolCall)]
    written = [call.arguments.replace('"', "").replace(" ", "") for call in made]
    assert written == [f"{{n:{number}}}" for number in range(calls)]
    assert len({call.call_id for call in made}) == calls
    assert [event.total_tokens for event in events if isinstance(event, Usage)] == [15]
    assert not any(isinstance(event, TextDelta) and "next" in event.text for event in events)
    (end,) = [event for event in events if isinstance(event, TurnEnd)]
    assert (end.reason, end.calls_truncated, events[-1]) == ("tool_calls", False, end)


@pytest.mark.parametrize("where", ["before", "between", "inside"])
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("calls", [1, 2, 3, 8])
@pytest.mark.parametrize("origin", ORIGINS)
def test_a_slow_burst_arrives_whole(origin: str, calls: int, gap: float, where: str) -> None:
    check(recipe(Settings()).process(slowly(origin, calls, gap, where), TURN), calls)


@pytest.mark.parametrize("where", ["before", "between", "inside"])
@pytest.mark.parametrize("gap", GAPS)
def test_a_slow_burst_of_blocks_arrives_whole_where_no_tools_are_declared(
    gap: float, where: str
) -> None:
    events = slowly("use_tool", 3, gap, where)
    check(recipe(Settings()).process(events, Turn(output_mode="obsidian-xml")), 3)


CUT: dict[str, tuple[Settings, Turn]] = {
    "first": (Settings(stop_after_tools_mode="first"), TURN),
    "cap": (Settings(tool_block_max=1), TURN),
    "stop": (Settings(), evolve(TURN, stop=("STOP",))),
}


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("earlier", [True, False])
def test_what_is_cut_in_the_middle_has_the_usage_that_was_told_by_then(
    cut: str, earlier: bool
) -> None:
    before = [TextDelta("Hm."), COST, ResponseEnd()] if earlier else []
    made = [TextDelta("STOP")] if cut == "stop" else [*structured(0), *structured(1)]
    events = [TurnStart("told"), *before, *made, Usage(90, 9, 99), ResponseEnd(), TurnEnd()]
    settings, turn = CUT[cut]
    out = recipe(settings).process(events, turn)
    told = [event.total_tokens for event in out if isinstance(event, Usage)]
    assert told == ([15] if earlier else [])


class InTime(SendingSource):
    """Says each event when its time has come."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events

    async def run(self, send: Send) -> None:
        began = trio.current_time()
        for event in self._events:
            await trio.sleep_until(began + event.at)
            await send.send((evolve(event, at=trio.current_time()),))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("origin", ORIGINS)
async def test_a_slow_burst_arrives_whole_while_time_passes(
    origin: str, gap: float, fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    for where in ("before", "between", "inside"):
        source = InTime(slowly(origin, 3, gap, where))
        events = await recipe(Settings()).run(source, Collect(), TURN, fuse=fuse)
        check(events, 3)


async def test_no_silence_ends_a_burst_of_an_api_over_http() -> None:
    """Its stream is the response: the stages know from the first event on that its end comes."""
    first, *_ = await hear(says(http(delta("Hi") + COMPLETED)))
    assert isinstance(first, TurnStart)
    assert first.response_ends == "told"
