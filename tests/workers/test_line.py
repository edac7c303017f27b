"""The line between two processes: questions, answers in any order, and the end of one side."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pipeline.loose_json import Json
from pipeline.workers.line import Answer, Line, LineCutError


async def silence(_: str, __: Json) -> None:
    await trio.sleep_forever()


async def echo(what: str, given: Json) -> object:
    return [what, given]


@asynccontextmanager
async def lines(answer: Answer) -> AsyncGenerator[tuple[Line, trio.CancelScope]]:
    """The line of whoever asks, and the life of whoever answers."""
    here, there = (trio.SocketStream(one) for one in trio.socket.socketpair())
    asking, answering = Line(here, silence), Line(there, answer)
    life = trio.CancelScope()

    async def live() -> None:
        with life:
            await answering.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.run)
        nursery.start_soon(live)
        yield asking, life
        nursery.cancel_scope.cancel()


async def test_a_question_gets_its_answer_whatever_it_holds() -> None:
    async with lines(echo) as (asking, _):
        words = {"what": "line\nbreaks", "id": 7, "given": {"deep": [1, None, "é", "\udcff"]}}
        assert await asking.ask("say", **words) == ["say", words]
        assert await asking.ask("large", text="x" * 3_000_000) is not None


async def test_answers_come_in_any_order() -> None:
    first, order = trio.Event(), list[str]()

    async def answer(what: str, _: Json) -> object:
        if what == "slow":
            await first.wait()
        return what

    async def ask(asking: Line, what: str) -> None:
        assert await asking.ask(what) == what
        order.append(what)
        first.set()

    async with lines(answer) as (asking, _), trio.open_nursery() as nursery:
        nursery.start_soon(ask, asking, "slow")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, asking, "fast")
    assert order == ["fast", "slow"]


async def test_whoever_waits_is_told_when_the_other_side_is_gone() -> None:
    async with lines(silence) as (asking, life), trio.open_nursery() as nursery:

        async def cut() -> None:
            await trio.testing.wait_all_tasks_blocked()
            life.cancel()

        nursery.start_soon(cut)
        with pytest.raises(LineCutError):
            await asking.ask("anything")
        with pytest.raises(LineCutError):
            await asking.ask("anything more")
        asking.tell("nobody")  # which is no error: nobody waits for it


async def test_whoever_stops_waiting_leaves_the_line_in_order() -> None:
    async with lines(echo) as (asking, _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await asking.ask("one")
        assert await asking.ask("two") == ["two", {}]
        assert asking.heard == 2, "the answer that nobody waited for too"


async def test_a_bug_in_an_answer_is_logged_and_cuts_nothing() -> None:
    async def broken(what: str, _: Json) -> object:
        if what == "break":
            raise RuntimeError("oops")
        return what

    async with lines(broken) as (asking, _):
        with capture_logs() as logged:
            assert await asking.ask("break") is None
        assert await asking.ask("go on") == "go on"
    assert [line["what"] for line in logged] == ["break"]
