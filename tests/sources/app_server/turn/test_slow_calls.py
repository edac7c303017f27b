"""No call is lost however slowly it is written, and each answer has its own cost."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.assembly import Settings, recipe
from pipeline.events import ToolCall, TurnEnd, TurnStart
from pipeline.turn import Turn
from sinks.collect import Collect
from sources.app_server.protocol.capabilities import Learned
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.source import AppServerSource
from sources.replay import Replay
from tests.support.chain_parts import read, stalling
from tests.support.slow_codex import (
    TOOL,
    Answer,
    Response,
    Step,
    ask,
    converse,
    cost,
    followed,
    slow_codex,
)

ROOT = Path(__file__).parents[4]

GO = [{"type": "message", "role": "user", "content": "Go"}]
LAST: Response = [Step(0.1, "text", "Done.")]
NEVER = math.inf


def calls(*gaps: float) -> list[Step]:
    return [Step(gap, "call", f'{{"n": {number}}}') for number, gap in enumerate(gaps)]


def told() -> Learned:
    return Learned("told")


def untold() -> Learned:
    return Learned("untold")


# -- the burst ends with its response ------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.0, 0.2, 0.6, 2.0, 10.0])
@pytest.mark.parametrize("between", ["nothing", "text", "reasoning"])
async def test_a_backend_that_tells_has_all_its_calls_in_one_answer(
    gap: float, between: Any, autojump_clock: trio.testing.MockClock
) -> None:
    at_work = Step(gap / 2, between, "and")
    burst = [at_work, *calls(gap / 2), at_work, *calls(gap / 2), Step(gap, "nothing")]
    async with slow_codex(burst, LAST, tells=True, learned=told()) as (codex, backend):
        first, second = await converse(backend)
    assert [call.call_id for call in first.calls] == ["call_1", "call_2"]
    assert (first.usage, second.usage) == ([1010], [1011])
    assert (second.text, codex.threads) == ("Done.", 1)
    assert first.took == pytest.approx(3 * gap, abs=0.01)


async def test_the_first_response_of_a_child_settles_what_it_tells(
    autojump_clock: trio.testing.MockClock,
) -> None:
    learned = Learned()
    async with slow_codex(calls(0.0, 4.0), LAST, tells=True, learned=learned) as (_, backend):
        first, _ = await converse(backend)
        assert (len(first.calls), learned.response_ends) == (2, "told")
    learned = Learned()
    async with slow_codex(LAST, tells=False, learned=learned) as (_, backend):
        await ask(backend, GO)
        assert learned.response_ends == "untold"
    learned = Learned("told")
    async with slow_codex(LAST, tells=False, learned=learned) as (_, backend):
        await ask(backend, GO)
        assert learned.response_ends == "told", "what it did once, it can do"


@pytest.mark.parametrize(
    ("learned", "tells"), [(told(), True), (untold(), False), (Learned(), False)]
)
async def test_the_first_event_of_a_turn_says_what_is_known(
    learned: Learned, tells: bool, autojump_clock: trio.testing.MockClock
) -> None:
    known = learned.response_ends
    async with slow_codex(LAST, tells=tells, learned=learned) as (_, backend):
        answer = await ask(backend, GO)
    starts = [event for event in answer.events if isinstance(event, TurnStart)]
    assert [start.response_ends for start in starts] == [known]
    assert answer.events[0] is starts[0]


async def test_until_anything_is_known_five_seconds_of_silence_end_a_burst(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with slow_codex(calls(0.0, 4.9), LAST, tells=False) as (_, backend):
        answer = await ask(backend, GO)
    assert len(answer.calls) == 2
    assert answer.took == pytest.approx(9.9, abs=0.01)


@pytest.mark.parametrize("mode", ["burst", "first"])
@pytest.mark.parametrize("stop", [True, False])
async def test_with_and_without_the_cut_an_answer_ends_with_its_response(
    mode: Any, stop: bool, autojump_clock: trio.testing.MockClock
) -> None:
    chosen = Settings(stop_after_tools=stop, stop_after_tools_mode=mode)
    async with slow_codex(calls(0.0, 2.0), LAST, tells=True, learned=told()) as (_, backend):
        answer = await ask(backend, GO, chosen)
    cut_at_first = stop and mode == "first"
    assert len(answer.calls) == (1 if cut_at_first else 2)
    assert answer.took == pytest.approx(0.0 if cut_at_first else 2.0, abs=0.01)
    assert answer.usage == ([] if cut_at_first else [1010])
    assert isinstance(answer.events[-1], TurnEnd)


async def test_without_the_cut_and_the_end_an_answer_ends_after_a_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chosen = Settings(stop_after_tools=False)
    async with slow_codex(calls(0.0, 9.0), tells=False, learned=untold()) as (_, backend):
        answer = await ask(backend, GO, chosen)
    assert len(answer.calls) == 2
    assert answer.took == pytest.approx(9.0 + Bounds().outputs, abs=0.01)


async def test_a_longer_grace_is_not_overruled(autojump_clock: trio.testing.MockClock) -> None:
    chosen = Settings(stop_after_tools_grace_ms=20_000)
    bounds = Bounds(outputs=40.0)
    burst = calls(0.0, 19.0)
    async with slow_codex(burst, tells=False, learned=untold(), bounds=bounds) as (_, backend):
        answer = await ask(backend, GO, chosen)
    assert len(answer.calls) == 2


@pytest.mark.parametrize("fuse", [True, False])
async def test_calls_made_in_time_arrive_though_their_client_stalls(
    fuse: bool, autojump_clock: trio.testing.MockClock
) -> None:
    burst = [Step(0.0, "text", "Hm."), *calls(*[0.2] * 12), *calls(5.0)]
    turn = Turn(model="m", items=tuple(GO), tools=(TOOL,))
    async with slow_codex(burst, tells=False, learned=untold()) as (_, backend):
        source = AppServerSource(backend)
        events = await read(recipe(Settings()), source, stalling, turn, fuse=fuse)
    made = [event.call_id for event in events if isinstance(event, ToolCall)]
    assert made == [f"call_{number}" for number in range(1, 13)]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("tells", [True, False])
async def test_a_call_that_was_read_too_late_is_handed_out_by_the_follow_up(
    fuse: bool, tells: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    # The second word waits for the client; what comes behind it is read when the client reads on.
    words = [Step(0.0, "text", "Hm."), Step(0.1, "text", "So.")]
    burst = [*words, *calls(0.1, 9.0)]
    turn = Turn(model="m", items=tuple(GO), tools=(TOOL,))
    learned = Learned() if tells else untold()
    async with slow_codex(burst, LAST, tells=tells, learned=learned) as (codex, backend):
        source = AppServerSource(backend)
        events = await read(recipe(Settings()), source, stalling, turn, fuse=fuse)
        await trio.testing.wait_all_tasks_blocked()
        first = Answer(events, 0.0)
        second = await ask(backend, followed(GO, first), record=tmp_path)
        await trio.testing.wait_all_tasks_blocked()
        third = await ask(backend, followed(followed(GO, first), second))
        assert codex.threads == 1
    got = [[call.call_id for call in answer.calls] for answer in (first, second, third)]
    assert got == [["call_1"], ["call_2"], []]
    assert (first.usage, second.usage) == ([], [1010] if tells else [])
    assert third.text == "Done."
    (recording,) = await trio.Path(tmp_path).iterdir()  # a thread: virtual time passes over it
    replay = Replay(Path(recording))
    assert replay.header.turn is not None
    again = Answer(await recipe(Settings()).run(replay, Collect(), replay.header.turn), 0.0)
    assert [call.call_id for call in again.calls] == ["call_2"]


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("burst", "failed"),
    [([Step(NEVER, "call")], 504), ([*calls(0.0), Step(NEVER, "call")], 504)],
    ids=["before any call", "after one"],
)
@pytest.mark.parametrize("bounds", [Bounds(30.0, 60.0, 90.0), Bounds(90.0, 90.0, 60.0)])
async def test_a_call_that_is_never_finished_runs_into_the_limits(
    burst: Response, failed: int, bounds: Bounds, autojump_clock: trio.testing.MockClock
) -> None:
    async with slow_codex(burst, tells=True, learned=told(), bounds=bounds) as (codex, backend):
        answer = await ask(backend, GO)
        await trio.testing.wait_all_tasks_blocked()
        assert codex.interrupted == 1
        assert len(backend.kept) == 0
    assert [failure.error.status for failure in answer.failures] == [failed]
    assert isinstance(answer.events[-1], TurnEnd)
    assert 30.0 <= answer.took <= 60.0


# -- calls that come after the cut -----------------------------------------------------------------


async def test_a_call_that_comes_after_the_cut_is_handed_out_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    burst = [*calls(0.0), Step(2.0, "text", "Also:"), *calls(0.1), Step(0.1, "text", "tail")]
    async with slow_codex(burst, LAST, tells=False, learned=untold()) as (codex, backend):
        first, second, third = await converse(backend, running=60.0)
        assert [call.call_id for call in first.calls] == ["call_1"]
        assert [call.call_id for call in second.calls] == ["call_2"]
        assert (second.text, third.text) == ("Also:", "Done.")
        counted = backend.place.client.counters["problem missing_response_end calls"]
        assert counted == 2
        assert (codex.threads, codex.interrupted, len(backend.kept)) == (1, 0, 0)


async def test_late_calls_are_handed_out_together(autojump_clock: trio.testing.MockClock) -> None:
    burst = calls(0.0, 2.0, 2.0)
    async with slow_codex(burst, LAST, tells=False, learned=untold()) as (_, backend):
        answers = await converse(backend, running=60.0)
    got = [[call.call_id for call in answer.calls] for answer in answers]
    assert got == [["call_1"], ["call_2", "call_3"], []]


async def test_an_output_is_given_when_codex_asks_for_it_even_much_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    burst = calls(0.0, 0.0, 7.0)  # the third comes after the cut, with the end of its response
    async with slow_codex(burst, LAST, tells=True) as (codex, backend):
        answers = await converse(backend, running=10.0)
    got = [[call.call_id for call in answer.calls] for answer in answers]
    assert got == [["call_1", "call_2"], ["call_3"], []]
    assert (answers[-1].text, codex.threads) == ("Done.", 1)


async def test_a_codex_that_does_not_tell_is_waited_for_twice_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    loop = [calls(0.0) for _ in range(4)]
    async with slow_codex(*loop, LAST, tells=False) as (_, backend):
        answers = await converse(backend)
    assert [answer.took for answer in answers[:4]] == pytest.approx([5.0, 5.0, 0.3, 0.3], abs=0.01)


async def test_a_call_that_comes_during_the_follow_up_is_part_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with slow_codex(calls(0.0, 8.0), LAST, tells=False, learned=untold()) as (_, backend):
        answers = await converse(backend, running=1.0)
    assert [[call.call_id for call in answer.calls] for answer in answers] == [
        ["call_1"],
        ["call_2"],
        [],
    ]


async def test_a_turn_cut_by_a_silence_while_nothing_was_known_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    learned = Learned()
    async with slow_codex(calls(0.0, 7.0), LAST, tells=True, learned=learned) as (_, backend):
        first, second, third = await converse(backend, running=10.0)
    assert [len(answer.calls) for answer in (first, second, third)] == [1, 1, 0]
    assert [answer.usage for answer in (first, second, third)] == [[], [1010], [1011]]
    assert learned.response_ends == "told"


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [
        (Settings(tool_block_dedup=True), {}),
        (Settings(tool_block_max=1), {}),
        (Settings(), {"parallel_tool_calls": False}),
        (Settings(), {"max_tool_calls": 1}),
    ],
    ids=["dedup", "cap", "parallel_tool_calls", "max_tool_calls"],
)
@pytest.mark.parametrize("tells", [True, False])
async def test_a_thread_is_not_kept_for_calls_that_were_dropped_on_purpose(
    chosen: Settings, asked: dict[str, Any], tells: bool, autojump_clock: trio.testing.MockClock
) -> None:
    burst = [Step(0.0, "call"), Step(0.2, "call")]
    learned = told() if tells else untold()
    async with slow_codex(burst, LAST, tells=tells, learned=learned) as (codex, backend):
        answer = await ask(backend, GO, chosen, **asked)
        await trio.testing.wait_all_tasks_blocked()
        assert len(answer.calls) == 1
        assert (len(backend.kept), codex.interrupted) == (0, 1)


async def test_the_limits_of_kept_threads_hold(autojump_clock: trio.testing.MockClock) -> None:
    keep = KeepOptions(seconds=20.0)
    async with slow_codex(calls(0.0), LAST, tells=True, learned=told(), keep=keep) as (
        codex,
        backend,
    ):
        first = await ask(backend, GO)
        await trio.sleep(19.0)
        assert (len(first.calls), len(backend.kept), codex.interrupted) == (1, 1, 0)
        await trio.sleep(2.0)
        assert (len(backend.kept), codex.interrupted) == (0, 1)


# -- recordings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("running", [0.2, 3.0, 60.0])
async def test_replay_decides_as_it_was_decided_live(
    tells: bool,
    known: bool,
    running: float,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    burst = [*calls(0.0, 0.1), Step(2.0, "text", "Also:"), *calls(0.1, 0.4), Step(6.0, "call")]
    learned = (told() if tells else untold()) if known else Learned()
    async with slow_codex(burst, LAST, tells=tells, learned=learned) as (_, backend):
        answers = await converse(backend, running=running, record=tmp_path)
    found = await trio.Path(tmp_path).iterdir()
    recordings = sorted(map(Path, found), key=lambda path: Replay(path).header.time)
    assert len(recordings) == len(answers)
    for path, answer in zip(recordings, answers, strict=True):
        replay = Replay(path)
        header = replay.header
        assert header.turn is not None
        assert (header.version, header.request_id, header.backend) == (1, "req_1", "")
        replayed = await recipe(Settings()).run(replay, Collect(), header.turn)
        again = Answer(replayed, 0.0)
        assert [call.call_id for call in again.calls] == [call.call_id for call in answer.calls]
        assert (again.text, again.usage) == (answer.text, answer.usage)


JUDGED: dict[str, tuple[list[str], str]] = {
    "raw ends": (["item/tool/call", "rawResponse/completed"], "told"),
    "ends of an API": (["response.completed"], "told"),
    "totals and calls that wait": (["item/tool/call", "thread/tokenUsage/updated"], "untold"),
    "totals alone": (["thread/tokenUsage/updated"], "told"),
    "totals of version 1": (["token_count"], "told"),
    "none of these": (["item/tool/call", "turn/completed"], "unknown"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_recording_without_a_header_is_judged_by_what_it_contains(
    name: str, tmp_path: Path
) -> None:
    methods, ends = JUDGED[name]
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps({"method": method}) + "\n" for method in methods))
    assert Replay(path).header.response_ends == ends


def test_the_recorded_transcripts_are_of_codexes_that_tell() -> None:
    recorded = sorted((ROOT / "examples" / "transcripts").rglob("*.jsonl"))
    assert len(recorded) > 20
    failed = {"error-E401", "error-E429", "error-E500", "error-ECUT", "error-EINC"}
    for path in recorded:
        ends = Replay(path).header.response_ends
        assert ends == ("unknown" if path.stem in failed else "told"), path.name


# -- laws ------------------------------------------------------------------------------------------

STEPS = st.builds(
    Step,
    gap=st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.6, 2.0, 6.0, 10.0]),
    kind=st.sampled_from(["call", "call", "call", "text", "reasoning", "nothing"]),
    words=st.just('{"q": 1}'),
)
RESPONSES = st.lists(st.lists(STEPS, min_size=1, max_size=8), min_size=1, max_size=3)


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=150, deadline=None)
@given(
    responses=RESPONSES,
    tells=st.booleans(),
    known=st.booleans(),
    running=st.sampled_from([0.01, 0.3, 1.0, 7.0, 60.0]),
)
def test_every_call_arrives_once_in_order_and_no_answer_is_empty(
    responses: list[list[Step]], tells: bool, known: bool, running: float
) -> None:
    in_virtual_time(partial(_every_call_once, responses, tells, known, running))


async def _every_call_once(
    responses: list[list[Step]], tells: bool, known: bool, running: float
) -> None:
    # A response without calls is the last of a turn.
    made = [response for response in responses if any(step.kind == "call" for step in response)]
    number = sum(step.kind == "call" for response in made for step in response)
    learned = (told() if tells else untold()) if known else Learned()
    async with slow_codex(*made, LAST, tells=tells, learned=learned) as (codex, backend):
        answers = await converse(backend, running=running)
        got = [call.call_id for answer in answers for call in answer.calls]
        assert got == [f"call_{place}" for place in range(1, number + 1)]
        assert all(answer.calls or answer.text for answer in answers)
        assert answers[-1].text == "Done."
        assert codex.threads == 1
        assert not any(answer.failures for answer in answers)
        spent = [tokens for answer in answers for tokens in answer.usage]
        costs = [cost(place)["totalTokens"] for place in range(len(made) + 1)]
        if tells and known:
            assert (spent, len(answers)) == (costs, len(made) + 1)
        elif tells:  # of an answer that was cut by a silence the cost may not be known
            assert spent == [one for one in costs if one in spent]
            assert all(len(answer.usage) <= 1 for answer in answers)
            assert spent[-1] == costs[-1]
        else:
            assert spent == costs[-1:]


async def test_six_calls_have_six_true_costs(autojump_clock: trio.testing.MockClock) -> None:
    loop = [calls(0.5) for _ in range(6)]
    async with slow_codex(*loop, LAST, tells=True, learned=told()) as (_, backend):
        answers = await converse(backend)
    assert [answer.usage for answer in answers] == [[1010 + number] for number in range(7)]
