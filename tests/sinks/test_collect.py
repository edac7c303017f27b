"""The sink that keeps the events themselves."""

from __future__ import annotations

from pipeline.errors import Failure
from pipeline.events import TextDelta, ToolCall, TurnEnd
from sinks.collect import Collect


def test_events_are_kept_until_the_turn_ends() -> None:
    sink = Collect()
    text, call, end = TextDelta("a"), ToolCall("call_a", "search", "{}"), TurnEnd()
    assert sink.feed((text, call)) + sink.keepalive() + sink.fail(Failure("down")) == b""
    assert (sink.finished, sink.result()) == (False, [text, call])
    sink.feed((end,))
    assert (sink.finished, sink.result()) == (True, [text, call, end])
    assert sink.call_ids == ("call_a",)
