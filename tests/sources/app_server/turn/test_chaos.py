"""Turns on an app-server that misbehaves, over real pipes: each fault harms nobody but itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import Event, Failed, ToolCall, TurnEnd, Usage
from pipeline.recipe import Pipeline
from pipeline.turn import OutputSchema, Tool
from sources.app_server.protocol.mailbox import Mailbox
from sources.app_server.transport import stdio
from sources.app_server.transport.framing import LineFramer
from sources.app_server.turn import incoming
from sources.app_server.turn.source import AppServerSource
from sources.demo.chaos_child import ChaosChild
from tests.support.chaos_turns import HELLO, play, text, turn_of

PROBES = 2
"""So many threads are asked for, and refused, to find out what the backend can do."""


def ended_by(events: Sequence[Event]) -> tuple[int, str | None]:
    """Status and code of the one failure of a turn, which ends with it."""
    failed, end = [event for event in events if isinstance(event, Failed | TurnEnd)]
    assert isinstance(failed, Failed)
    assert (end, events[-1]) == (TurnEnd("failed", at=end.at), end)
    return failed.error.status, failed.error.code


# -- how it is written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        "",
        "!torn",
        "!glued",
        "!garbage",
        "!stderr",
        "!early",
        "!late",
        "!crosstalk",
        "!glued !garbage !crosstalk !late",
        "!torn !garbage !crosstalk !late !early !stderr=100000",
    ],
)
async def test_an_answer_arrives_whole_whatever_is_written_around_it(
    tmp_path: Path, faults: str
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        events = await play(child.pool, f"TEXT {faults}")
        assert text(events) == HELLO
        assert [type(event) for event in events if isinstance(event, Usage)] == [Usage]
        assert events[-1] == TurnEnd("completed", at=events[-1].at)
        assert text(await play(child.pool, "TEXT")) == HELLO
        await child.until(lambda: len(child.told("thread/delete")) == 2)
        assert not child.told("turn/interrupt")


async def test_a_line_of_10_mb_arrives_whole(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        assert text(await play(child.pool, "TEXT !huge")) == f"Hello{'x' * 10_000_000}, wörld 🌍!"


async def test_a_line_that_is_too_long_is_skipped_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framers: list[LineFramer] = []

    def framer(longest: int = 1_000_000) -> LineFramer:
        framers.append(LineFramer(longest))
        return framers[-1]

    monkeypatch.setattr(stdio, "LineFramer", framer)
    async with ChaosChild(tmp_path).running() as child:
        assert text(await play(child.pool, "TEXT !overlong=1000000")) == HELLO
    assert sum(framer.overlong for framer in framers) == 1
    assert child.pool.counters()["problem unreadable_item line"] == 1


@pytest.mark.parametrize("seed", range(6))
async def test_frames_in_another_order_still_make_a_turn_that_ends_once(
    tmp_path: Path, seed: int
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        events = await play(
            child.pool, f"TEXT !shuffled={seed}", recipe=assembly.recipe(Settings())
        )
        assert [event for event in events if isinstance(event, TurnEnd)] == [events[-1]]
        assert text(await play(child.pool, "TEXT")) == HELLO


async def test_frames_that_come_twice_make_each_call_once(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        events = await play(child.pool, "BURST !twice", recipe=assembly.recipe(Settings()))
        calls = [event.call_id for event in events if isinstance(event, ToolCall)]
        assert calls == ["call_a", "call_b", "call_c"]
        assert events[-1] == TurnEnd("tool_calls", at=events[-1].at)


async def test_answers_under_wrong_ids_are_counted_and_nothing_else(tmp_path: Path) -> None:
    methods = ("initialize", "thread/start", "thread/inject_items", "turn/start")
    flags = [part for method in methods for part in ("--wrong-id", method)]
    async with ChaosChild(tmp_path, *flags).running() as child:
        place = await child.pool.lease()
        assert text(await play(child.pool, "TEXT")) == HELLO
        assert place.client.counters["an answer to nothing"] == 2 * len(methods)


# -- what it asks and what it cannot do ----------------------------------------------------------


async def test_every_approval_is_declined_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        said = text(await play(child.pool, "TEXT !approve"))
        assert said.splitlines() == [
            'item/commandExecution/requestApproval: {"decision":"decline"}',
            'item/fileChange/requestApproval: {"decision":"decline"}',
            'item/permissions/requestApproval: {"permissions":{},"scope":"turn"}',
            'applyPatchApproval: {"decision":"denied"}',
            'execCommandApproval: {"decision":"denied"}',
            'item/tool/requestUserInput: {"answers":{}}',
            'mcpServer/elicitation/request: {"action":"decline"}',
            "currentTime/read: -32601",
            HELLO,
        ]


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [
        ("E400", 400, "invalid_request_error"),
        ("E401", 401, "invalid_api_key"),
        ("E429", 429, "insufficient_quota"),
        ("E500", 500, "server_error"),
        ("CUT", 502, "upstream_error"),
    ],
)
async def test_a_turn_that_failed_upstream_tells_why(
    tmp_path: Path, word: str, status: int, code: str
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        assert ended_by(await play(child.pool, word)) == (status, code)
        await child.until(lambda: child.told("thread/delete"))
        assert not child.told("turn/interrupt")


async def test_an_old_backend_is_told_everything_in_words_and_its_threads_are_put_away(
    tmp_path: Path,
) -> None:
    lacks = ("thread/inject_items", "thread/delete", "dynamicTools", "experimentalRawEvents")
    flags = [part for name in lacks for part in ("--lacks", name)]
    async with ChaosChild(tmp_path, *flags).running() as child:
        await child.until(lambda: len(child.told("thread/archive")) == PROBES)
        events = await play(child.pool, turn_of("TEXT", instructions="Be brief."))
        assert text(events) == HELLO
        *_, started = child.told("thread/start")
        assert "dynamicTools" not in started
        assert started["developerInstructions"].startswith("Be brief.\n\n")
        assert '"name":"localSearch"' in started["developerInstructions"]
        assert child.told("turn/start")[0]["input"] == [{"type": "text", "text": "TEXT"}]
        await child.until(lambda: len(child.told("thread/archive")) == PROBES + 1)


# -- overload ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["thread/start", "thread/inject_items", "turn/start"])
async def test_an_overloaded_backend_is_asked_again(tmp_path: Path, method: str) -> None:
    async with ChaosChild(tmp_path, "--busy", f"{method}=1").running() as child:
        assert text(await play(child.pool, "TEXT")) == HELLO


async def test_a_backend_that_refuses_a_thread_is_a_clear_error(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, "--refuse", "thread/start").running() as child:
        assert ended_by(await play(child.pool, "TEXT")) == (400, "invalid_request_error")


# -- many at once --------------------------------------------------------------------------------


async def test_fifty_turns_at_once_hear_nothing_of_each_other(tmp_path: Path) -> None:
    heard: dict[int, str] = {}

    async def one(child: ChaosChild, number: int) -> None:
        heard[number] = text(await play(child.pool, f"turn-{number}-of-50 !crosstalk !late"))

    async with ChaosChild(tmp_path).running() as child:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, child, number)
        assert heard == {n: f"You said: turn-{n}-of-50 !crosstalk !late" for n in range(50)}
        await child.until(lambda: len(child.told("thread/delete")) == 50)
        started = len({told["threadId"] for told in child.told("turn/start")})
        assert (started, len(child.told("turn/interrupt"))) == (50, 0)


async def test_a_client_that_does_not_read_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "Mailbox", partial(Mailbox, 1_000_000))
    go_on, stuck = trio.Event(), list[Event]()

    async def do_not_read(child: ChaosChild) -> None:
        async with Pipeline().open(AppServerSource(child.pool), turn_of("!endless")) as chain:
            await go_on.wait()
            async for burst in chain:
                stuck.extend(burst)

    async with ChaosChild(tmp_path).running() as child:
        counters = (await child.pool.lease()).client.counters
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(do_not_read, child)
                await child.until(lambda: counters["got item/agentMessage/delta"] > 10_000)
                assert text(await play(child.pool, "LONG")) == "word " * 2000
                go_on.set()
        assert ended_by(stuck) == (503, "server_is_overloaded")
        assert text(stuck).startswith("word word ")
        await child.until(lambda: len(child.told("thread/delete")) == 2)
        assert len(child.told("turn/interrupt")) == 1


# -- what is refused before it is sent -----------------------------------------------------------

BAD = "half \ud83d of a pair"
DEEP: list[Any] = reduce(lambda inner, _: [inner], range(200), [])


@pytest.mark.parametrize(
    "fields",
    [
        {"items": ({"type": "message", "role": "user", "content": BAD},)},
        {"items": ({"type": "message", "role": "user", "content": [{"text": BAD}]},)},
        {"instructions": BAD},
        {"base_instructions": BAD},
        {"model": BAD},
        {"effort": BAD},
        {"output_schema": OutputSchema({"title": BAD})},
        {"output_schema": OutputSchema({}, BAD)},
        {"output_schema": OutputSchema({}, description=BAD)},
        {"tools": (Tool(BAD),)},
        {"tools": (Tool("f", description=BAD),)},
        {"tools": (Tool("f", {"properties": {BAD: {}}}),)},
        {"tools": (Tool("f", {"properties": {"x": {"enum": [BAD]}}}),)},
    ],
    ids=lambda fields: str(fields).encode("ascii", "replace").decode()[:60],
)
async def test_half_a_surrogate_pair_is_refused_before_anything_is_sent(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        assert ended_by(await play(child.pool, turn_of("TEXT", **fields))) == (
            400,
            "invalid_request_error",
        )
        assert len(child.told("thread/start")) == PROBES


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": (Tool("f", {"x": DEEP}),)},
        {"output_schema": OutputSchema({"x": DEEP})},
        {"items": ({"type": "message", "role": "user", "content": DEEP},)},
    ],
    ids=["a tool", "a schema", "an item"],
)
async def test_what_is_nested_too_deeply_for_codex_is_refused_too(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Codex cannot read over 127 levels, and does not answer what it cannot read."""
    async with ChaosChild(tmp_path).running() as child:
        assert ended_by(await play(child.pool, turn_of("TEXT", **fields)))[0] == 400
        assert len(child.told("thread/start")) == PROBES
