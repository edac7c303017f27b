"""Items that a backend sends again under the same id: their text comes once."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.events import Event, ReasoningItem, TextDelta
from sources.decode.items import REPEATED
from sources.decode.turn_decoder import TurnDecoder

Message = dict[str, Any]


def v2(method: str, **params: Any) -> Message:
    return {"method": method, "params": {"threadId": "T", "turnId": "0", **params}}


def begins(item_id: str = "a") -> Message:
    return v2("item/started", item={"type": "agentMessage", "id": item_id, "text": ""})


def delta(text: str, item_id: str = "a") -> Message:
    return v2("item/agentMessage/delta", itemId=item_id, delta=text)


def finished(text: str, item_id: str = "a") -> Message:
    return v2("item/completed", item={"type": "agentMessage", "id": item_id, "text": text})


def raw(text: str, item_id: str = "a") -> Message:
    content = [{"type": "output_text", "text": text}]
    item = {"type": "message", "role": "assistant", "id": item_id, "content": content}
    return v2("rawResponseItem/completed", item=item)


def retry() -> Message:
    return v2("error", error={"message": "stream disconnected"}, willRetry=True)


def thought() -> Message:
    summary = [{"type": "summary_text", "text": "hm"}]
    item = {"type": "reasoning", "id": "r", "summary": summary}
    return v2("rawResponseItem/completed", item=item)


STARTED: Message = {
    "method": "turn/started",
    "params": {"threadId": "T", "turn": {"id": "0"}},
}

OVER = v2("rawResponse/completed", responseId="resp_1", usage={})

TABLE: dict[str, tuple[list[Message], list[str], int]] = {
    "finished twice": ([begins(), finished("A"), finished("A")], ["A"], 1),
    "finished twice after deltas": ([begins(), delta("A"), finished("A"), finished("A")], ["A"], 1),
    "raw twice": ([raw("A"), raw("A")], ["A"], 1),
    "raw twice after deltas": ([begins(), delta("A"), raw("A"), raw("A")], ["A"], 1),
    "finished and raw": ([begins(), finished("A"), raw("A")], ["A"], 0),
    "all forms twice": (
        [begins(), delta("A"), finished("A"), finished("A"), raw("A"), raw("A")],
        ["A"],
        2,
    ),
    "finished after raw": ([begins(), raw("A"), finished("A")], ["A"], 1),
    "an old one in the middle of the next": (
        [
            *(begins(), delta("A"), finished("A"), raw("A")),
            *(begins("b"), delta("B", "b"), raw("A"), finished("A"), finished("B", "b")),
        ],
        ["A", "B"],
        2,
    ),
    "equal texts of two items": ([finished("A"), raw("A"), finished("A", "b")], ["A", "A"], 0),
    "items without an id": ([raw("A", ""), raw("A", "")], ["A", "A"], 0),
    "an id used again for a new item": (
        [begins(), finished("A"), raw("A"), begins(), finished("B"), raw("B")],
        ["A", "B"],
        0,
    ),
    "an id of the response before, where no item is said to begin": (
        [raw("A"), OVER, raw("B")],
        ["A", "B"],
        0,
    ),
    "late, where items are said to begin": ([begins(), raw("A"), OVER, raw("A")], ["A"], 1),
    "an answer begun again": ([begins(), finished("A"), retry(), finished("A")], ["A", "A"], 0),
}


def decoded(messages: list[Message]) -> tuple[list[Event], int]:
    decoder = TurnDecoder()
    events = [event for message in messages for event in decoder.feed(message)]
    return events, decoder.dropped[REPEATED]


@pytest.mark.parametrize("name", TABLE)
def test_a_repeated_message_counts_once(name: str) -> None:
    messages, texts, repeated = TABLE[name]
    events, dropped = decoded([STARTED, *messages])
    assert [event.text for event in events if isinstance(event, TextDelta)] == texts
    assert dropped == repeated


def test_repeated_reasoning_counts_once() -> None:
    events, dropped = decoded([STARTED, thought(), thought()])
    assert sum(isinstance(event, ReasoningItem) for event in events) == 1
    assert dropped == 1


def test_a_repeated_item_of_the_responses_api_counts_once() -> None:
    content = [{"type": "output_text", "text": "A"}]
    item = {"type": "message", "role": "assistant", "id": "a", "content": content}
    done = {"type": "response.output_item.done", "item": item}
    events, dropped = decoded([done, done])
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["A"]
    assert dropped == 1
