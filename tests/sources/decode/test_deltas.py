"""Deltas that are read together: the same events as when each is read alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import TextDelta
from pipeline.loose_json import Json
from sources.app_server.protocol.mailbox import Delivery, Letter
from sources.app_server.protocol.names import Aliases
from sources.app_server.protocol.rpc import Notification, RpcCore
from sources.app_server.turn.reading import TurnReader
from sources.decode.deltas import HEAD, named_thread, read_deltas
from sources.decode.turn_decoder import TurnDecoder

METHOD = "item/agentMessage/delta"


def line(text: object = "Hi", turn: str = "T", thread: str = "th", item: object = "m") -> bytes:
    params = {"threadId": thread, "turnId": turn, "itemId": item, "delta": text}
    return msgspec.json.encode({"method": METHOD, "params": params, "emittedAtMs": 1})


def started(turn: str = "T") -> Json:
    return {"method": "turn/started", "params": {"threadId": "th", "turn": {"id": turn}}}


def ended() -> Json:
    turn = {"id": "T", "status": "completed"}
    return {"method": "turn/completed", "params": {"threadId": "th", "turn": turn}}


def note(message: Json) -> Notification:
    return Notification(message["method"], message["params"], message, 1)


def read(*letters: Letter) -> tuple[list[object], dict[str, int]]:
    decoder = TurnDecoder()
    reader = TurnReader(decoder, Aliases(()))
    burst = reader.read(Delivery((note(started()), *letters), 3.0))
    return list(burst), dict(decoder.dropped)


def opened(raw: bytes) -> Letter:
    """The same line as the client would read it, had it no head that it knows."""
    found = RpcCore().read(raw)
    assert isinstance(found, Notification)
    return found


def test_the_head_is_the_one_that_codex_writes() -> None:
    assert line().startswith(HEAD)
    assert named_thread(line(thread="01a1")) == b"01a1"


def test_deltas_become_text_in_order() -> None:
    events, _ = read(line("Hel"), line("lo", item="n"))
    assert events == [TextDelta("Hel", "m", at=3.0), TextDelta("lo", "n", at=3.0)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "", "ö", "<", "\n", '"', 7, None]),
            st.sampled_from(["T", "U", ""]),
            st.sampled_from(["m", "n", None, 3]),
        ),
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_together_or_one_by_one_is_the_same(
    told: list[tuple[object, str, object]], end: int
) -> None:
    lines = [line(text, turn, item=item) for text, turn, item in told]
    together: list[Letter] = [*lines]
    alone: list[Letter] = [opened(raw) for raw in lines]
    for letters in (together, alone):
        letters.insert(end, note(ended()))
    assert read(*together) == read(*alone)


@pytest.mark.parametrize(
    "broken",
    [
        line("a")[:-3],
        line("a") + b"}",
        HEAD + b'th","turnId":7,"itemId":"m","delta":"x"}}',
        HEAD + b'th"}}',
        HEAD + b'th","turnId":"T","itemId":"m","delta":"\xff"}}',
        HEAD + b'th","turnId":"T","itemId":"m","delta":"\\ud800"}}',
    ],
)
def test_one_line_that_is_none_spoils_no_other(broken: bytes) -> None:
    assert read_deltas([line("a"), broken]) is None
    events, dropped = read(line("a"), broken, line("b"))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert (texts[0], texts[-1]) == ("a", "b")
    assert len(texts) + sum(dropped.values()) == 4  # the turn's start says nothing


def test_a_line_that_is_not_json_is_counted() -> None:
    _, dropped = read(line("a")[:-3])
    assert dropped["a line that is not JSON"] == 1


def test_before_its_turn_is_known_a_delta_is_looked_at() -> None:
    decoder = TurnDecoder()
    reader = TurnReader(decoder, Aliases(()))
    assert reader.read(Delivery((line("early"),), 0.0)) == (TextDelta("early", "m"),)


def test_two_values_on_one_line_are_not_two_deltas() -> None:
    assert read_deltas([line("a") + b"\n" + line("b")]) is None
