"""What a turn's first burst tells of it, however it is sent."""

from __future__ import annotations

import pytest

from pipeline.chain import Pipeline
from pipeline.events import Event, TextDelta, TurnEnd
from pipeline.serve.closing import EndedByServer, Time
from pipeline.stage import Send
from sinks.collect import Collect

EVENTS: tuple[Event, ...] = (TextDelta("a", at=1.0), TextDelta("b", at=2.0), TurnEnd(at=3.0))


class Sends:
    """Sends bursts with waiting or without, as it is told."""

    real_time = False

    def __init__(self, ways: str) -> None:
        self._ways = ways

    async def run(self, send: Send) -> None:
        for way, event in zip(self._ways, EVENTS, strict=True):
            if way == "n" and send.ready:
                send.send_nowait((event,))
            else:
                await send.send((event,))


@pytest.mark.parametrize("ways", ["www", "nww", "wnw", "nnn"])
async def test_the_first_burst_is_noted_once_and_all_are_passed_on(ways: str) -> None:
    heard: list[float] = []
    events = await Pipeline().run(EndedByServer(Sends(ways), Time(), heard.append), Collect())
    assert heard == [1.0]
    assert events == [*EVENTS]
