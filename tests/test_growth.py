"""What a delta costs does not depend on how many there were: counted, and not timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import cast

import pytest

from pipeline.assembly import Settings, chat_options, recipe, responses_options
from pipeline.bench.stages import transcript
from pipeline.events import Burst
from pipeline.segment import Stages
from pipeline.turn import Tool, Turn
from sinks.chat import ChatSse
from sinks.responses import ResponsesSse
from sources.app_server.protocol.mailbox import Delivery
from sources.app_server.protocol.names import Aliases
from sources.app_server.transport.framing import LineFramer
from sources.app_server.turn.reading import TurnReader
from sources.decode.turn_decoder import TurnDecoder

TURN = Turn(tools=(Tool("localSearch"),), stop=("never said",))
READ = 4096
FEW, MANY = 1_000, 100_000


def calls(deltas: int, *, api: str, turn: Turn = TURN) -> int:
    """How many functions are called on the way from the backend's bytes to the client's."""
    settings = Settings()
    stages = Stages(recipe(settings).pure_stages(turn))
    encoder: ChatSse | ResponsesSse = (
        ChatSse(chat_options(settings, turn))
        if api == "chat"
        else ResponsesSse(responses_options(settings, turn))
    )
    framer = LineFramer()
    reader = TurnReader(TurnDecoder(), Aliases(()))
    data = b"".join(transcript(deltas)[:-1])
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        for start in range(0, len(data), READ):
            lines = framer.feed(data[start : start + READ])
            burst = stages.take(reader.read(Delivery(tuple(lines), 0.0)))
            encoder.feed(cast("Burst", burst))
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_hundred_thousand_deltas_cost_a_hundred_times_as_many_calls_as_a_thousand(
    api: str,
) -> None:
    few, many = calls(FEW, api=api) / FEW, calls(MANY, api=api) / MANY
    assert many == pytest.approx(few, rel=0.05)


def test_a_delta_takes_few_calls() -> None:
    """Most of its way it goes together with others: there is no loop over every stage."""
    plain = Turn(tools=TURN.tools)
    assert calls(10_000, api="chat", turn=plain) / 10_000 < 14
