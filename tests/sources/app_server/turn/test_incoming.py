"""A turn that is received from its mailbox: its events, its limits and its follow-up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field, frozen

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.chain import Chain
from pipeline.events import Event, TextDelta, TurnEnd
from pipeline.recipe import Pipeline
from pipeline.stage import Stage
from pipeline.turn import Tool, Turn
from sources.app_server.protocol.capabilities import Capabilities
from sources.app_server.turn.kept import KeptThreads
from sources.app_server.turn.place import Bounds, Place
from sources.app_server.turn.source import AppServerSource
from tests.support.app_server_wire import Wire, connected
from tests.support.chain_parts import read
from tests.support.chaos_turns import failure, text

ASKED = ({"type": "message", "role": "user", "content": "Tell me"},)


@frozen
class OneBackend:
    """An app-server at the other end of a wire."""

    place: Place
    bounds: Bounds = Bounds()
    kept: KeptThreads = field(factory=KeptThreads)

    async def lease(self) -> Place:
        return self.place


def answered(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """What a Codex answers, with the client's name of the model as the thread's."""
    if "method" not in message:  # an answer to a question of its own
        return ()
    model = message.get("params", {}).get("model", "")
    results: dict[str, Any] = {
        "thread/start": {"thread": {"id": f"thread-{model}"}},
        "turn/start": {"turn": {"id": "turn-1"}},
    }
    return [{"id": message["id"], "result": results.get(message["method"], {})}]


def told(model: str, method: str, **params: Any) -> dict[str, Any]:
    params = {"threadId": f"thread-{model}", "turnId": "turn-1", **params}
    return {"method": method, "params": params}


def word(model: str, said: str) -> dict[str, Any]:
    return told(model, "item/agentMessage/delta", itemId="msg-1", delta=said)


def ended(model: str) -> dict[str, Any]:
    return told(model, "turn/completed", turn={"id": "turn-1", "status": "completed"})


@define
class Client:
    """Reads a turn's events; when it is told to, not."""

    reads: trio.Event = field(factory=trio.Event)
    events: list[Event] = field(factory=list[Event])
    failed: Exception | None = None

    async def read(self, chain: Chain) -> None:
        async for burst in chain:
            self.events += burst
            if isinstance(burst[-1], TurnEnd):
                return
            await self.reads.wait()


@asynccontextmanager
async def backend_on_a_wire(
    bounds: Bounds | None = None,
) -> AsyncGenerator[tuple[Wire, OneBackend]]:
    async with connected() as (wire, client), trio.open_nursery() as nursery:
        wire.on_send = answered
        place = Place(client, Capabilities(delete_thread=True, dynamic_tools=True), ".", nursery)
        yield wire, OneBackend(place, bounds or Bounds())
        nursery.cancel_scope.cancel()


async def play(backend: OneBackend, client: Client, recipe: Pipeline, turn: Turn) -> None:
    try:
        await read(recipe, AppServerSource(backend), client.read, turn)
    except Exception as error:  # noqa: BLE001
        client.failed = error


@asynccontextmanager
async def under_way(
    wire: Wire,
    backend: OneBackend,
    recipe: Pipeline | None = None,
    model: str = "m",
) -> AsyncGenerator[Client]:
    """A turn that has said its first word, and whose client reads."""
    client = Client()
    client.reads.set()
    turn = Turn(model=model, stop=("STOP",), items=ASKED, tools=(Tool("look"),))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, backend, client, recipe or assembly.recipe(Settings()), turn)
            await trio.testing.wait_all_tasks_blocked()
            wire.say(told(model, "turn/started", turn={"id": "turn-1"}), word(model, "Once"))
            await trio.testing.wait_all_tasks_blocked()
            yield client
    assert client.failed is None


@pytest.mark.parametrize("fuse", [True, False])
async def test_words_are_received_as_they_come_and_together_when_they_come_together(
    fuse: bool,
) -> None:
    bursts: list[str] = []

    async def note(chain: Chain) -> None:
        async for burst in chain:
            bursts.extend([text(burst)])

    async with backend_on_a_wire() as (wire, backend), trio.open_nursery() as nursery:
        source = AppServerSource(backend)
        nursery.start_soon(partial(read, Pipeline(), source, note, Turn(model="m"), fuse=fuse))
        await trio.testing.wait_all_tasks_blocked()
        wire.say(told("m", "turn/started", turn={"id": "turn-1"}), word("m", "Once"))
        await trio.testing.wait_all_tasks_blocked()
        wire.say(word("m", " upon"), word("m", " a"))
        await trio.testing.wait_all_tasks_blocked()
        wire.say(word("m", " time"), ended("m"))
    assert list(filter(None, bursts)) == ["Once", " upon a", " time"]


async def test_words_wait_for_a_client_that_does_not_read_and_keep_their_order() -> None:
    async with backend_on_a_wire() as (wire, backend), under_way(wire, backend) as client:
        client.reads = trio.Event()
        for number in range(40):
            wire.say(word("m", f" {number}"))
            await trio.testing.wait_all_tasks_blocked()
        assert text(client.events) in ("Once", "Once 0")
        client.reads.set()
        wire.say(word("m", " end"), ended("m"))
    assert text(client.events) == "Once " + " ".join(map(str, range(40))) + " end"


class Broken(Stage):
    """Has a bug that a certain word brings out."""

    def feed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, TextDelta) and "bug" in event.text:
            raise ZeroDivisionError
        return (event,)


async def test_a_stages_bug_ends_its_own_turn_and_nobody_elses() -> None:
    recipe = assembly.recipe(Settings()).insert_after("calls", "broken", Broken)
    async with backend_on_a_wire() as (wire, backend):
        async with (
            under_way(wire, backend, recipe, model="good") as good,
            under_way(wire, backend, recipe, model="bad") as bad,
        ):
            wire.say(word("bad", " bug"), word("good", " upon"))
            wire.say(word("good", " a time"), ended("good"))
            await trio.testing.wait_all_tasks_blocked()
            assert isinstance(bad.failed, ZeroDivisionError)
            bad.failed = None
        await trio.testing.wait_all_tasks_blocked()
    assert text(good.events) == "Once upon a time"
    interrupted = [sent for sent in wire.sent if sent["method"] == "turn/interrupt"]
    assert [sent["params"]["threadId"] for sent in interrupted] == ["thread-bad"]


async def test_a_turn_that_is_cut_by_its_words_is_interrupted_once() -> None:
    async with backend_on_a_wire() as (wire, backend):
        async with under_way(wire, backend) as client:
            wire.say(word("m", " upon STOP a time"))
            await trio.testing.wait_all_tasks_blocked()
            wire.say(word("m", " late"))
        await trio.testing.wait_all_tasks_blocked()
    assert text(client.events) == "Once upon "
    methods = [sent["method"] for sent in wire.sent]
    assert methods.count("turn/interrupt") == methods.count("thread/delete") == 1


async def test_silence_is_counted_from_the_last_word(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with backend_on_a_wire(Bounds(first_event=50.0, idle=10.0)) as (wire, backend):  # noqa: SIM117
        async with under_way(wire, backend) as client:
            for _ in range(3):
                await trio.sleep(9)
                wire.say(word("m", "."))
            spoke = trio.current_time()
            await trio.sleep(9.9)
            assert not any(isinstance(event, TurnEnd) for event in client.events)
    assert failure(client.events).code == "timeout"
    assert text(client.events) == "Once..."
    end = client.events[-1]
    assert end.at == pytest.approx(spoke + 10.0, abs=0.01)


@pytest.mark.parametrize(("spoke", "failed"), [(None, 50.0), (20.0, 30.0), (45.0, 55.0)])
async def test_a_first_word_shortens_the_patience(
    spoke: float | None, failed: float, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend_on_a_wire(Bounds(first_event=50.0, idle=10.0)) as (wire, backend):
        client = Client()
        client.reads.set()
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(play, backend, client, Pipeline(), Turn(model="m"))
            if spoke is not None:
                await trio.sleep(spoke)
                wire.say(word("m", "Once"))
    assert failure(client.events).code == "timeout"
    assert client.events[-1].at - began == pytest.approx(failed, abs=0.01)


async def test_words_that_are_none_do_not_break_a_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with backend_on_a_wire(Bounds(first_event=50.0, idle=10.0)) as (wire, backend):  # noqa: SIM117
        async with under_way(wire, backend) as client:
            spoke = trio.current_time()
            for _ in range(3):
                await trio.sleep(4)
                wire.say(word("m", ""))
    assert failure(client.events).code == "timeout"
    assert client.events[-1].at == pytest.approx(spoke + 10.0, abs=0.01)


# -- held turns ----------------------------------------------------------------------------------


async def call_and_go_on(wire: Wire, *words: str) -> None:
    """Let the model say something more, call a tool, and then say these words."""
    wire.say(word("m", " upon"))
    await trio.testing.wait_all_tasks_blocked()
    call = told("m", "item/tool/call", callId="call-1", tool="look", arguments={})
    wire.say({"id": 77, **call})
    await trio.testing.wait_all_tasks_blocked()
    for said in words:
        wire.say(word("m", said))


def followed_up(words: str) -> Turn:
    """The request of a client that has run the tool, and may repeat what was said before it."""
    said = {"type": "message", "role": "assistant", "content": words}
    call = {"type": "function_call", "call_id": "call-1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call-1", "output": "rain"}
    items = (*ASKED, *([said] if words else []), call, output)
    return Turn(model="m", stop=("STOP",), items=items, tools=(Tool("look"),))


@pytest.mark.parametrize(
    ("words", "repeated"),
    [((), "Once upon"), ((" STOP",), "")],
    ids=["ended by the grace", "cut by a word"],
)
async def test_a_turn_that_is_held_goes_on_from_where_its_answer_ended(
    words: tuple[str, ...], repeated: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with backend_on_a_wire() as (wire, backend):
        async with under_way(wire, backend) as first:
            await call_and_go_on(wire, *words)
        await trio.testing.wait_all_tasks_blocked()
        assert len(backend.kept) == 1
        second = Client()
        second.reads.set()
        async with trio.open_nursery() as nursery:
            turn = followed_up(repeated)
            nursery.start_soon(play, backend, second, assembly.recipe(Settings()), turn)
            await trio.testing.wait_all_tasks_blocked()
            wire.say(word("m", "It rains"))
            await trio.testing.wait_all_tasks_blocked()
            wire.say(word("m", "."), ended("m"))
        assert second.failed is None
    assert text(first.events) == "Once upon"
    assert text(second.events) == "It rains."
    assert [sent["method"] for sent in wire.sent if "method" in sent].count("turn/start") == 1
