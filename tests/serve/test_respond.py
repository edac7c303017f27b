"""How an answer is sent: its silences, its books, and the moment at which it is delivered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs

from pipeline.assembly import Settings
from pipeline.errors import ProxyError
from pipeline.events import Event, Failed, TextDelta, TurnEnd
from pipeline.recipe import Pipeline
from pipeline.serve.observe.exchange import Exchange
from pipeline.serve.respond import Stream
from pipeline.stage import Incoming, Outcome, Send, Source
from pipeline.tasks import SendingSource
from pipeline.turn import Turn
from sinks.chat import ChatOptions, ChatSse
from tests.serve.scripted import (
    BROKEN,
    CHAT,
    ScriptedBackend,
    body,
    served,
)
from tests.serve.wire import post, wire

PING = b": ping\n\n"
LARGE = "x" * 20_000_000
STREAM = pytest.mark.parametrize("stream", [True, False])


class Paced(SendingSource):
    """Waits before each event as long as it is given."""

    def __init__(self, *steps: tuple[float, Event]) -> None:
        self._steps = steps

    async def run(self, send: Send) -> None:
        for pause, event in self._steps:
            await trio.sleep(pause)
            await send.send((evolve(event, at=trio.current_time()),))


class Sent:
    """What one stream sends, and when."""

    def __init__(self, source: Source, *, log_content: bool = False) -> None:
        self.exchange = Exchange.of("POST", CHAT, None)
        self.data: list[bytes] = []
        self.times: list[float] = []
        self._source = source
        self._settings = Settings(ping_interval=1.0, log_content=log_content)

    async def send(self, data: bytes) -> None:
        self.data.append(data)
        self.times.append(trio.current_time() - self.exchange.started)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Stream]:
        sink = ChatSse(ChatOptions())
        async with Pipeline().open(self._source, fuse=True) as chain:
            yield Stream(self._settings, self.exchange, chain, sink, before_end=self.store)

    async def run(self, window: float = 60.0) -> None:
        async with self.opened() as stream:
            await stream.prime(window)
            await stream.write_all(self.send)

    async def store(self) -> None:
        self.data.append(b"stored")
        await trio.lowlevel.checkpoint()

    @property
    def kinds(self) -> list[str]:
        """What was sent, each in one word."""
        return [_kind(data) for data in self.data]


def _kind(data: bytes) -> str:
    if data in {PING, b"stored"}:
        return data.decode().strip(": \n")
    if b"[DONE]" in data:
        return "error" if b'"error"' in data else "end"
    return "word"


WORD = TextDelta("word")


@pytest.mark.parametrize(("pause", "pings"), [(0.7, 0), (1.5, 1), (2.5, 2)])
async def test_a_stream_has_pings_in_its_silences_and_none_while_it_is_busy(
    pause: float, pings: int, autojump_clock: trio.testing.MockClock
) -> None:
    sent = Sent(Paced((0.0, WORD), *[(pause, WORD)] * 5, (pause, TurnEnd())))
    await sent.run()
    silence = ["ping"] * pings
    assert sent.kinds == ["word", *[*silence, "word"] * 5, *silence, "stored", "end"]


async def test_the_window_before_the_head_closes_with_the_first_word_or_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for window, primed, kinds in ((3.0, 2.0, ["word"]), (1.5, 1.5, ["ping", "word"])):
        sent = Sent(Paced((2.0, WORD), (0.5, TurnEnd())))
        async with sent.opened() as stream:
            await stream.prime(window)
            assert trio.current_time() - sent.exchange.started == primed
            await stream.write_all(sent.send)
        assert sent.kinds == [*kinds, "stored", "end"]


async def test_a_failure_is_raised_before_the_head_and_sent_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fails = Paced((2.0, Failed(BROKEN)), (0.0, TurnEnd("failed")))
    early, late = Sent(fails), Sent(fails)
    with pytest.raises(ProxyError, match="the upstream is down"):
        await early.run()
    await late.run(window=1.5)
    assert (early.kinds, late.kinds) == ([], ["ping", "stored", "error"])
    assert late.exchange.failure == BROKEN


async def test_an_answer_begins_with_its_first_word_and_not_with_a_ping(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent = Sent(Paced((4.5, WORD), (1.5, TurnEnd())), log_content=True)
    with capture_logs() as logs:
        await sent.run(window=0.0)
    assert sent.kinds == [*["ping"] * 5, "word", "ping", "stored", "end"]
    assert sent.exchange.first_byte - sent.exchange.started == 4.5
    logged = b"".join(entry["data"].encode() for entry in logs)
    assert logged == b"".join(data for data in sent.data if data not in {PING, b"stored"})


async def test_a_turn_without_an_end_is_a_bug_before_the_head_and_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.raises(RuntimeError):
        await Sent(Paced()).run()
    sent = Sent(Paced((1.5, WORD)))
    await sent.run(window=1.0)
    assert sent.kinds == ["ping", "word", "stored", "error"]


# -- delivery --------------------------------------------------------------------------------------


class Delivers(SendingSource):
    """Notes when its answer was complete, delivered and left."""

    def __init__(self, text: str) -> None:
        self.noted: list[str] = []
        self._text = text

    async def run(self, send: Send) -> None:
        await send.send((TextDelta(self._text), TurnEnd()))

    @asynccontextmanager
    async def open(self, turn: Turn) -> AsyncGenerator[Incoming]:
        try:
            async with super().open(turn) as incoming:
                yield _Delivering(incoming, self.noted)
        finally:
            self.noted.append("left")


class _Delivering(Incoming):
    def __init__(self, incoming: Incoming, noted: list[str]) -> None:
        self.receive = incoming.receive  # type: ignore[method-assign]
        self.receive_nowait = incoming.receive_nowait  # type: ignore[method-assign]
        self._note = noted.append

    def finishing(self, outcome: Outcome | None) -> None:
        self._note("complete")

    def delivered(self, outcome: Outcome | None) -> None:
        self._note("delivered")


class DeliveringBackend(ScriptedBackend):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.turn = Delivers(text)

    def chosen(self, turn: Turn) -> Source:
        return self.turn


@STREAM
async def test_an_answer_is_delivered_when_its_client_has_been_sent_all_of_it(
    stream: bool,
) -> None:
    backend = DeliveringBackend(LARGE)
    noted = backend.turn.noted
    async with served(backend) as here, wire(here) as connection:
        await connection.write(post(body(stream=stream)))
        await connection.read_until(b"xxxx")
        assert noted == ["complete"]
        if not stream:
            assert here.server.admission.running == 0  # a slow reader occupies no slot
        await connection.read_until(b"[DONE]\n\n" if stream else b'"usage":null}')
        await here.until_logged()
    assert noted == ["complete", "delivered", "left"]


@STREAM
async def test_an_answer_whose_client_leaves_is_not_delivered(stream: bool) -> None:
    backend = DeliveringBackend(LARGE)
    async with served(backend) as here:
        async with wire(here) as connection:
            await connection.write(post(body(stream=stream)))
            await connection.read_until(b"xxxx")
        (line,) = await here.until_logged()
    assert line["client_left"] is True
    assert backend.turn.noted == ["complete", "left"]
