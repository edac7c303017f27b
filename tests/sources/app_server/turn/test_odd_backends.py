"""Backends that compact, retry, number their calls anew or leave out what a turn cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.assembly import Settings, recipe
from pipeline.events import Event, TextDelta, TurnEnd, Usage
from pipeline.loose_json import Json
from pipeline.turn import Turn
from sinks.collect import Collect
from sources.app_server.protocol.capabilities import Learned
from sources.app_server.turn.record import Recorder
from sources.app_server.turn.source import AppServerSource
from sources.decode.turn_decoder import TurnDecoder
from sources.replay import Replay
from tests.sources.app_server.turn.test_slow_calls import GO, LAST, calls, told, untold
from tests.support.chain_parts import read, stalling
from tests.support.slow_codex import (
    TOOL,
    Answer,
    Response,
    SlowCodex,
    Step,
    ask,
    converse,
    slow_codex,
)

CALLED: Json = {
    "type": "function_call",
    "call_id": "call_1",
    "name": TOOL.name,
    "arguments": '{"n": 0}',
}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "the first output"}
FOLLOW_UP = [*GO, CALLED, OUTPUT]
TOTAL = "thread/tokenUsage/updated"
Tell = Callable[..., None]


def leave_out(monkeypatch: pytest.MonkeyPatch, *left_out: int) -> None:
    """Have the totals of some responses not told, as when their upstream gave no usage."""
    tell: Tell = SlowCodex._tell  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    totals = count()

    def told_less(self: SlowCodex, thread: str, method: str, **params: Any) -> None:
        if method != TOTAL or next(totals) not in left_out:
            tell(self, thread, method, **params)

    monkeypatch.setattr(SlowCodex, "_tell", told_less)


def reuse_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every response number its calls from 1 again, as some upstreams do."""
    write: Any = SlowCodex._write  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def written(self: SlowCodex, thread: str, response: Response, _: Any, made: Any) -> None:
        await write(self, thread, response, count(1), made)

    monkeypatch.setattr(SlowCodex, "_write", written)


# -- a compaction of Codex's own, as recorded from 0.163 -------------------------------------------


def test_the_summary_of_a_compaction_is_no_part_of_the_answer() -> None:
    decoder = TurnDecoder(raw_items=True)
    place = {"threadId": "t", "turnId": "u"}
    usage = {"inputTokens": 120, "outputTokens": 33, "totalTokens": 153}
    summary = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a summary for Codex itself"}],
    }
    compaction = {"type": "contextCompaction", "id": "compaction-1"}
    told_so: list[tuple[str, Json]] = [
        ("turn/started", {"threadId": "t", "turn": {"id": "u"}}),
        ("item/started", {**place, "item": compaction}),
        ("rawResponseItem/completed", {**place, "item": summary}),
        ("rawResponse/completed", {**place, "responseId": "r", "usage": usage}),
        ("item/completed", {**place, "item": compaction}),
        ("item/agentMessage/delta", {**place, "itemId": "m", "delta": "The answer."}),
        ("rawResponse/completed", {**place, "responseId": "r2", "usage": usage}),
    ]
    events = [
        event
        for method, params in told_so
        for event in decoder.feed({"method": method, "params": params})
    ]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["The answer."]
    assert len([event for event in events if isinstance(event, Usage)]) == 1


# -- costs that are not told (seen on 0.144.4) -----------------------------------------------------


@pytest.mark.parametrize("left_out", [0, 1])
async def test_a_follow_up_has_its_text_though_an_earlier_total_was_not_told(
    left_out: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    leave_out(monkeypatch, left_out)
    loop = [calls(0.0) for _ in range(left_out + 1)]
    async with slow_codex(*loop, LAST, tells=False, learned=untold()) as (_, backend):
        answers = await converse(backend)
    assert answers[-1].text == "Done."


async def test_a_long_follow_up_streams_where_no_totals_are_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    leave_out(monkeypatch, 0, 1)
    long = [Step(1.0, "text", "x") for _ in range(130)]
    async with slow_codex(calls(0.0), long, tells=False, learned=untold()) as (_, backend):
        answers = await converse(backend)
    assert answers[-1].failures == []
    assert answers[-1].text == "x" * 130


# -- a disk that is full ---------------------------------------------------------------------------


@pytest.mark.parametrize("continued", [True, False])
async def test_a_recording_that_cannot_begin_leaves_no_session_behind(
    continued: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async with slow_codex(calls(0.0), LAST, tells=True, learned=told()) as (_, backend):
        if continued:
            await ask(backend, GO)
            await trio.sleep(1.0)
        monkeypatch.setattr(Recorder, "begin", full)
        with pytest.raises(OSError, match="No space"):
            await ask(backend, FOLLOW_UP if continued else GO, record=tmp_path)
        await trio.sleep(1500.0)
        assert backend.place.client.load == 0


# -- call ids that come again ----------------------------------------------------------------------


async def test_a_new_call_is_not_answered_with_the_output_of_an_old_one(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    reuse_ids(monkeypatch)
    slow = [*calls(0.5), Step(0.5, "nothing")]
    async with slow_codex(calls(0.0), slow, LAST, tells=True, learned=told()) as (codex, backend):
        await ask(backend, GO)
        await trio.sleep(1.0)
        await ask(backend, FOLLOW_UP)
        await trio.sleep(10.0)
        assert len([message for message in codex.wire.sent if "result" in message]) == 1


async def test_a_call_under_an_id_of_the_history_reaches_the_client(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with slow_codex(calls(0.0), LAST, tells=True, learned=told()) as (_, backend):
        answer = await ask(backend, FOLLOW_UP)
    assert answer.took < 10.0, "it waits for CODEX_IDLE_TIMEOUT_S instead"
    assert len(answer.calls) == 1


# -- replay ----------------------------------------------------------------------------------------


async def replayed(folder: Path) -> Sequence[Event]:
    (path,) = [Path(found) for found in await trio.Path(folder).iterdir()]
    replay = Replay(path)
    return await recipe(Settings()).run(replay, Collect(), replay.header.turn)


async def test_replay_has_the_usage_and_the_end_behind_a_late_call(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    burst = [Step(0.0, "text", "Hm."), *calls(0.1), Step(0.5, "text", "a"), *calls(7.0)]
    turn = Turn(model="m", items=tuple(GO), tools=(TOOL,))
    async with slow_codex(burst, LAST, tells=True, learned=Learned()) as (_, backend):
        source = AppServerSource(backend)
        await read(recipe(Settings()), source, stalling, turn, fuse=True)
        await trio.testing.wait_all_tasks_blocked()
        live = await ask(backend, FOLLOW_UP, record=tmp_path)
    assert live.usage == [1010]
    assert Answer(await replayed(tmp_path), 0.0).usage == live.usage


async def test_replay_ends_an_answer_that_a_silence_ended_as_live_did(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with slow_codex(calls(0.0, 0.1), LAST, tells=False, learned=untold()) as (_, backend):
        live = await ask(backend, GO, record=tmp_path)
    again = Answer(await replayed(tmp_path), 0.0)
    assert (live.failures, again.failures) == ([], [])
    reasons = [end.reason for end in (*live.events, *again.events) if isinstance(end, TurnEnd)]
    assert reasons == ["tool_calls", "tool_calls"]


# -- retries ---------------------------------------------------------------------------------------


async def test_a_thread_is_found_again_though_its_answer_was_begun_twice(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    write: Any = SlowCodex._write  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    tell: Tell = SlowCodex._tell  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def retried(self: SlowCodex, thread: str, response: Response, *rest: Any) -> None:
        if response[-1].kind == "call":
            tell(self, thread, "item/agentMessage/delta", itemId="item-0", delta="Let me ")
            tell(self, thread, "error", error={"message": "disconnected"}, willRetry=True)
        await write(self, thread, response, *rest)

    monkeypatch.setattr(SlowCodex, "_write", retried)
    burst = [Step(0.1, "text", "Let me look."), *calls(0.1)]
    async with slow_codex(burst, LAST, tells=True, learned=told()) as (codex, backend):
        first = await ask(backend, GO)
        assert first.text == "Let me look."
        said: Json = {"type": "message", "role": "assistant", "content": first.text}
        await trio.sleep(1.0)
        await ask(backend, [*GO, said, CALLED, OUTPUT])
        assert codex.threads == 1
