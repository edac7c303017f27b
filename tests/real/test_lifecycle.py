"""How turns on the newest real Codex end: by leaving, cutting, crashing, silence, and retrying."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
from attrs import evolve

from pipeline.assembly import Settings, recipe
from pipeline.errors import ProxyError
from pipeline.events import Event, Failed, RetryNotice, TextDelta
from pipeline.recipe import Pipeline
from pipeline.turn import OutputSchema, Tool, Turn
from sinks.chat import ChatCompletion
from sinks.collect import Collect
from sources.app_server.process.pool import Pool
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.source import AppServerSource
from sources.demo.model import ScriptedModel
from sources.demo.provider import scripted_provider

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Watch: TypeAlias = Callable[[Pool, Turn], Awaitable[list[Event]]]
Said: TypeAlias = Callable[..., Turn]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]

TOOLS = (Tool("localSearch"), Tool("readNote"))
on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.fixture
def version() -> str:
    return "0.166.0"


def content(answer: ChatCompletion) -> str | None:
    said: str | None = answer.body["choices"][0]["message"]["content"]
    return said


def children() -> list[int]:
    """The app-servers that this process started; a server of other tests may run beside them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            words = (stat.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        if int(parent) == os.getpid() and b"app-server" in words:
            found.append(int(stat.parent.name))
    return found


class ReadOne:
    """Tells that the first text has come, and reads on."""

    def __init__(self) -> None:
        self.begun = trio.Event()

    async def read(self, backend: Pool, turn: Turn) -> None:
        async with recipe(Settings()).open(AppServerSource(backend), turn) as chain:
            async for burst in chain:
                if any(isinstance(event, TextDelta) for event in burst):
                    self.begun.set()


# -- leaving and cutting ---------------------------------------------------------------------------


async def test_a_client_that_leaves_ends_the_generation_and_the_thread(
    open_codex: OpenCodex, said: Said, model: ScriptedModel, tmp_path: Path, until: Until
) -> None:
    home = tmp_path / "home"
    async with open_codex(home=home) as backend:
        counters = (await backend.lease()).client.counters
        reader = ReadOne()
        turn = said("HANG")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.read, backend, turn)
                await reader.begun.wait()
                assert list(home.rglob("rollout-*"))
                nursery.cancel_scope.cancel()
        await until(lambda: model.leavers == 1)
        await until(lambda: counters["got thread/deleted"] == 1)
        assert counters["sent turn/interrupt"] == 1
        assert not list(home.rglob("rollout-*"))


@pytest.mark.parametrize("leave_after", [0.0, 0.01, 0.03, 0.1])
async def test_a_client_that_leaves_at_once_leaves_nothing_behind(
    backend: Pool, said: Said, model: ScriptedModel, leave_after: float, until: Until
) -> None:
    client = (await backend.lease()).client
    count = client.counters
    probes = count["sent thread/start"]
    turn = said("HANG")
    with trio.move_on_after(leave_after):
        await recipe(Settings()).run(AppServerSource(backend), Collect(), turn)
    await until(lambda: count["sent thread/delete"] == count["sent thread/start"] - probes)
    await until(lambda: client.load == 0)
    assert count["sent turn/interrupt"] == count["sent turn/start"]
    await until(lambda: model.leavers == len(model.requests))


@pytest.mark.parametrize("keyword", ["ONECALL", "BURST"])
async def test_the_cut_after_the_calls_ends_the_turn_and_deletes_the_thread(
    open_codex: OpenCodex, ask: Ask, said: Said, model: ScriptedModel, keyword: str, until: Until
) -> None:
    async with open_codex(keep=KeepOptions(most=0)) as backend:
        client = (await backend.lease()).client
        answer = await ask(backend, said(keyword, tools=TOOLS))
        assert answer.body["choices"][0]["finish_reason"] == "tool_calls"
        await until(lambda: client.counters["got thread/deleted"] == 1)
        await until(lambda: client.load == 0)
    assert client.counters["sent turn/interrupt"] == 1
    assert len(model.requests) == 1


async def test_a_turn_that_ended_by_itself_is_not_interrupted(
    backend: Pool, ask: Ask, said: Said, until: Until
) -> None:
    counters = (await backend.lease()).client.counters
    await ask(backend, said("TEXT"))
    await until(lambda: counters["got thread/deleted"] == 1)
    assert counters["sent turn/interrupt"] == 0


async def test_a_turn_that_ends_while_it_is_cut_is_deleted_all_the_same(
    backend: Pool, ask: Ask, said: Said, until: Until
) -> None:
    counters = (await backend.lease()).client.counters
    for _ in range(10):
        await ask(backend, said("SENTINEL", tools=TOOLS))
    await until(lambda: counters["sent thread/delete"] + counters["not let go"] == 10)
    assert counters["sent thread/delete"] == 10


async def test_without_the_cut_a_turn_with_calls_still_ends(
    backend: Pool, ask: Ask, said: Said
) -> None:
    turn = said("ONECALL", tools=TOOLS)
    with trio.fail_after(30):
        answer = await ask(backend, turn, Settings(stop_after_tools=False))
    assert answer.body["choices"][0]["finish_reason"] == "tool_calls"


# -- many turns ------------------------------------------------------------------------------------


async def test_fifty_turns_at_once_get_their_own_answers(
    backend: Pool, ask: Ask, said: Said
) -> None:
    answers: dict[int, Any] = {}
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

    async def one(number: int) -> None:
        tools = (Tool(f"tool_{number}_", parameters),) if number % 2 else ()
        answer = await ask(backend, said(f"q{number} tool_{number}_", tools=tools))
        answers[number] = answer.body["choices"][0]["message"]

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    for number, message in answers.items():
        if number % 2:
            (call,) = message["tool_calls"]
            assert call["function"]["name"] == f"tool_{number}_"
            assert call["function"]["arguments"] == f'{{"q":"q{number} tool_{number}_"}}'
        else:
            assert message["content"] == f"You said: q{number} tool_{number}_"
    assert len(answers) == 50


# -- crashes, silence, retries ---------------------------------------------------------------------


@on_linux
async def test_a_child_killed_in_the_middle_fails_its_turn_and_the_next_one_works(
    backend: Pool, ask: Ask, said: Said
) -> None:
    await backend.lease()
    (child,) = children()
    reader = ReadOne()
    turn = said("HANG")
    caught: list[Event] = []

    async def run() -> None:
        caught.extend(await Pipeline().run(AppServerSource(backend), Collect(), turn))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(reader.read, backend, turn)
            await reader.begun.wait()
            os.kill(child, signal.SIGKILL)
    (failed,) = (event for event in caught if isinstance(event, Failed))
    assert (failed.error.status, failed.error.code) == (503, "server_is_overloaded")
    assert content(await ask(backend, said("TEXT"))) == "Hello, wörld 🌍!"
    assert children() != [child]


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


BOUNDS = Bounds(first_event=2.0, idle=1.0, total=6.0)


async def failure_within(backend: Pool, turn: Turn, bounds: Bounds) -> Failed:
    with trio.fail_after(15):
        events = await Pipeline().run(AppServerSource(backend, bounds), Collect(), turn)
    (failed,) = (event for event in events if isinstance(event, Failed))
    return failed


async def test_an_upstream_that_cannot_be_reached_fails_in_time(
    open_codex: OpenCodex, said: Said, until: Until
) -> None:
    nowhere = scripted_provider(f"http://127.0.0.1:{closed_port()}/v1")
    async with open_codex(overrides=nowhere) as backend:
        client = (await backend.lease()).client
        started = trio.current_time()
        failed = await failure_within(backend, said("TEXT"), BOUNDS)
        assert trio.current_time() - started < BOUNDS.total
        assert (failed.error.status, failed.error.code) == (504, "timeout")
        await until(lambda: client.counters["got thread/deleted"] == 1)
        assert client.counters["sent turn/interrupt"] == 1


@pytest.mark.parametrize("keyword", ["SILENT", "HANG"])
async def test_a_model_that_falls_silent_fails_the_turn_in_time(
    backend: Pool, said: Said, model: ScriptedModel, keyword: str, until: Until
) -> None:
    failed = await failure_within(backend, said(keyword), BOUNDS)
    assert (failed.error.status, failed.error.code) == (504, "timeout")
    await until(lambda: model.leavers == 1)


async def test_an_answer_begun_twice_is_read_once(
    open_codex: OpenCodex, ask: Ask, watch: Watch, said: Said, model: ScriptedModel, model_url: str
) -> None:
    async with open_codex(overrides=scripted_provider(model_url, stream_retries=1)) as backend:
        answer = await ask(backend, said("RETRY"))
        assert content(answer) == "Hello partial no more"
        assert answer.body["choices"][0]["finish_reason"] == "stop"
        assert answer.body["usage"]["total_tokens"] == 153
        assert len(model.requests) == 2
        events = await watch(backend, said("RETRY"))
        spoken = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert spoken == "Hello partHello partial no more"
        assert sum(isinstance(event, RetryNotice) for event in events) == 1


# -- requests that cannot be sent ------------------------------------------------------------------

HALF = "\ud800"
NO_TEXT: dict[str, dict[str, Any]] = {
    "an instruction": {"instructions": HALF},
    "a base instruction": {"base_instructions": HALF},
    "a tool's name": {"tools": (Tool(HALF),)},
    "a tool's description": {"tools": (Tool("t", {}, HALF),)},
    "a tool's schema": {"tools": (Tool("t", {"type": "object", "title": HALF}),)},
    "the answer's schema": {"output_schema": OutputSchema({"type": "object", "title": HALF})},
    "the model's name": {"model": HALF},
    "a call of the history": {
        "items": ({"type": "function_call", "call_id": "c", "name": "t", "arguments": HALF},)
    },
}


async def test_half_a_surrogate_pair_is_refused_wherever_it_stands(
    backend: Pool, ask: Ask, said: Said
) -> None:
    problems: dict[str, object] = {}
    for place, more in NO_TEXT.items():
        try:
            await ask(backend, evolve(said("TEXT"), **more))
        except ProxyError as error:
            problems[place] = (error.failure.status, "surrogate" in error.failure.message)
        except UnicodeError as error:
            problems[place] = error
    assert problems == dict.fromkeys(NO_TEXT, (400, True))
    assert content(await ask(backend, said("TEXT"))) == "Hello, wörld 🌍!"
