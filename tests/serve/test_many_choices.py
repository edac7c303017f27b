"""Several choices: as many turns, in one answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import trio

from pipeline.assembly import Settings
from pipeline.events import TextDelta, TurnEnd
from pipeline.serve.backends import CodexBackend
from pipeline.stage import Source
from pipeline.turn import Turn
from sources.demo.chaos_child import ChaosChild
from tests.serve.scripted import FAILS, USAGE, Script, ScriptedBackend, Served, call, served, tools
from tests.serve.wire import DONE, chunks, folded, frames

STREAM = pytest.mark.parametrize("stream", [True, False])


def each(script: Callable[[int], Script]) -> ScriptedBackend:
    """A backend whose turns differ by their number."""
    numbers = count()

    def choose(_: Turn) -> Script:
        return script(next(numbers))

    return ScriptedBackend(choose)


async def test_every_choice_is_a_turn_with_its_own_index() -> None:
    backend = each(lambda number: (TextDelta(f"I am {number}"), USAGE, TurnEnd()))
    async with served(backend) as here:
        whole = (await here.ask(n=3)).json()
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        said = {choice["message"]["content"] for choice in whole["choices"]}
        assert said == {"I am 0", "I am 1", "I am 2"}
        assert whole["usage"]["total_tokens"] == 3 * 153
        assert (await here.until_logged())[0]["finish_reason"] == ["stop"] * 3


async def test_the_choices_of_a_stream_finish_once_each_and_end_together() -> None:
    backend = each(lambda number: (TextDelta(f"I am {number}"), USAGE, TurnEnd()))
    async with served(backend) as here:
        answer = await here.ask(n=3, stream=True, stream_options={"include_usage": True})
    parts = chunks(answer.text)
    messages = folded(parts)
    assert sorted(messages) == [0, 1, 2]
    assert {message["finish_reason"] for message in messages.values()} == {"stop"}
    assert {message["role"] for message in messages.values()} == {"assistant"}
    assert [part["usage"]["total_tokens"] for part in parts if "usage" in part] == [3 * 153]
    assert frames(answer.text).count(DONE) == 1


async def test_calls_are_numbered_from_0_in_every_choice() -> None:
    script: Script = (call("a"), call("b", 1), TurnEnd())
    async with served(ScriptedBackend(script)) as here:
        answer = await here.ask(n=2, stream=True, tools=tools("look"))
        whole = await here.ask(n=2, tools=tools("look"))
    for message in folded(chunks(answer.text)).values():  # which checks the numbers
        assert [one["id"] for one in message["tool_calls"]] == ["call_a", "call_b"]
    assert '"tool_call_count":4' in answer.text
    assert whole.headers["x-codex-tool-call-count"] == "4"


@STREAM
async def test_one_choice_that_fails_fails_the_answer_and_ends_the_others(stream: bool) -> None:
    forever = trio.Event()
    backend = each(lambda number: FAILS if number == 1 else (forever,))
    async with served(backend) as here:
        answer = await here.ask(n=3, stream=stream)
        assert answer.status_code == 502
        assert [turn.left for turn in backend.turns].count("cancelled") >= 2
        await here.until(lambda: here.server.admission.running == 0)


async def test_one_choice_that_fails_in_the_middle_ends_the_stream_once() -> None:
    spoken, forever = trio.Event(), trio.Event()
    talks: Script = (TextDelta("Hi"), spoken)
    backend = each(lambda number: (*talks, *FAILS) if number else (*talks, forever))
    async with served(backend) as here:

        async def fail() -> None:
            await here.until(lambda: here.metric("proxy_streams_open") == 1)
            spoken.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            answer = await here.ask(n=2, stream=True)
    assert answer.status_code == 200
    assert frames(answer.text).count(DONE) == 1
    assert chunks(answer.text)[-1]["error"]["code"] == "upstream_error"
    assert backend.turns[0].left == "cancelled"


@STREAM
async def test_the_turns_of_the_other_choices_are_interrupted(tmp_path: Path, stream: bool) -> None:
    async with ChaosChild(tmp_path).running() as child:
        real = CodexBackend(child.pool, Settings(), "fake", "")

        class OneFails(ScriptedBackend):
            def chosen(self, turn: Turn) -> Source:
                return real.source if self.turns else super().chosen(turn)

        started = trio.Event()
        backend = OneFails((started, *FAILS))
        async with served(backend, prime_window=60.0) as here, trio.open_nursery() as nursery:

            async def fail() -> None:
                await child.until(lambda: child.pool.counters()["got turn/started"] == 2)
                started.set()

            nursery.start_soon(fail)
            answer = await here.ask("SILENT", n=3, stream=stream)
            assert answer.status_code == 502
            await child.until(lambda: len(child.told("thread/delete")) == 2)
            assert len(child.told("turn/interrupt")) == 2


async def test_nine_choices_are_too_many(shared: Served) -> None:
    answer = await shared.ask(n=9)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert (await shared.ask(n=8)).status_code == 200


async def test_choices_take_as_many_places() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, TextDelta("Hi"), TurnEnd()))
    async with served(backend, concurrency=3) as here, trio.open_nursery() as nursery:

        async def ask() -> None:
            await here.ask(n=3)

        nursery.start_soon(ask)
        await backend.until_turn(2)
        assert here.metric("proxy_turns_running") == 3
        nursery.start_soon(ask)
        await here.until(lambda: here.server.admission.waiting == 1)
        go.set()
    assert len(backend.turns) == 6
