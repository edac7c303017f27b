"""What a follow-up gets where its thread is not continued, and what it does not get where it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import Event, ToolCall
from pipeline.loose_json import Json
from pipeline.recipe import Pipeline
from pipeline.stage import Stage
from pipeline.turn import Tool, Turn
from sinks.collect import Collect
from sources.app_server.protocol.capabilities import Learned
from sources.app_server.protocol.mailbox import Mailbox
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.meaning import Call, answered, digest
from sources.replay import Replay
from tests.support.slow_codex import (
    Answer,
    Response,
    SlowCodex,
    Step,
    ask,
    converse,
    followed,
    slow_codex,
)

GO: list[Json] = [{"type": "message", "role": "user", "content": "Go"}]
LAST: Response = [Step(0.1, "text", "Done.")]
NONE, BRIEFLY = KeepOptions(most=0), KeepOptions(seconds=1.0)


def learned(*, tells: bool) -> Learned:
    return Learned("told" if tells else "untold")


# -- calls that are made again ---------------------------------------------------------------------


def rest_of(responses: Sequence[Response], answered: int) -> list[Response]:
    """What a model says that reads the outputs of its first calls in its history."""
    left: list[Response] = []
    for response in responses:
        places = [place for place, step in enumerate(response) if step.kind == "call"]
        if not places or answered < len(places):
            begun = places[answered - 1] + 1 if answered and places else 0
            left.append(response[begun:])
        answered = max(0, answered - len(places))
    return left


def reads_its_history(codex: SlowCodex, responses: Sequence[Response]) -> None:
    """On a new thread the model goes on behind the outputs that are in its history."""
    play = codex.heard

    def heard(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
        if message.get("method") == "thread/inject_items":
            kinds = [item.get("type") for item in message["params"]["items"]]
            codex.responses = rest_of(responses, kinds.count("function_call_output"))
        return play(message)

    codex.wire.on_send = heard


STEPS = st.builds(
    Step,
    gap=st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.6, 2.0, 6.0, 10.0]),
    kind=st.sampled_from(["call", "call", "call", "text", "reasoning", "nothing"]),
    words=st.just("and"),
)
RESPONSES = st.lists(st.lists(STEPS, min_size=1, max_size=8), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    responses=RESPONSES,
    tells=st.booleans(),
    known=st.booleans(),
    running=st.sampled_from([0.01, 0.3, 7.0, 60.0]),
    keep=st.sampled_from([NONE, BRIEFLY]),
)
def test_every_call_arrives_once_though_its_thread_is_not_continued(
    responses: list[list[Step]], tells: bool, known: bool, running: float, keep: KeepOptions
) -> None:
    test = partial(_every_call_once, responses, tells, known, running, keep)
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


async def _every_call_once(
    responses: list[list[Step]], tells: bool, known: bool, running: float, keep: KeepOptions
) -> None:
    numbers = iter(range(100))
    made = [
        [
            Step(step.gap, "call", f'{{"n": {next(numbers)}}}') if step.kind == "call" else step
            for step in response
        ]
        for response in responses
        if any(step.kind == "call" for step in response)
    ]
    said = [step.words for response in made for step in response if step.kind == "call"]
    knows = learned(tells=tells) if known else Learned()
    async with slow_codex(*made, LAST, tells=tells, learned=knows, keep=keep) as (codex, backend):
        reads_its_history(codex, (*made, LAST))
        answers = await converse(backend, running=running)
        assert [call.arguments for answer in answers for call in answer.calls] == said
        assert all(answer.calls or answer.text for answer in answers)
        assert answers[-1].text == "Done."
        assert not any(answer.failures for answer in answers)
        if keep is NONE or running > keep.seconds:
            assert codex.threads == len(answers)


# -- calls that a stage of one's own drops ---------------------------------------------------------


class OneCallOnly(Stage):
    """Lets the first call pass and no other."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def feed(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, ToolCall):
            return (event,)
        seen, self._seen = self._seen, True
        return self.drop(event, "one is enough") if seen else (event,)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("behind", ["calls", "cap"])
async def test_a_thread_is_not_kept_for_calls_that_a_stage_of_ones_own_dropped(
    behind: str,
    tells: bool,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    usual = assembly.recipe

    def recipe(chosen: Settings) -> Pipeline:
        return usual(chosen).insert_after(behind, "one", OneCallOnly)

    monkeypatch.setattr(assembly, "recipe", recipe)
    burst = [Step(0.0, "call"), Step(0.2, "call")]
    knows = learned(tells=tells)
    async with slow_codex(burst, LAST, tells=tells, learned=knows) as (codex, backend):
        answer = await ask(backend, GO)
        await trio.testing.wait_all_tasks_blocked()
        assert len(answer.calls) == 1
        assert (len(backend.kept), codex.interrupted) == (0, 1)


# -- threads on which too much was said ------------------------------------------------------------


async def test_a_thread_on_which_more_was_said_than_is_kept_is_not_continued(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(Mailbox.__init__, "__defaults__", (10_000,))
    words = [Step(1.0, "text", "x" * 1_000) for _ in range(20)]
    burst = [Step(0.0, "call"), *words, Step(1.0, "call", '{"late": 1}')]
    knows = learned(tells=False)
    async with slow_codex(burst, LAST, tells=False, learned=knows) as (codex, backend):
        reads_its_history(codex, (burst, LAST))
        first = await ask(backend, GO)
        await trio.sleep(30.0)
        assert (len(first.calls), len(backend.kept)) == (1, 1)
        second = await ask(backend, followed(GO, first))
        assert codex.threads == 2
    assert second.failures == []
    assert [call.arguments for call in second.calls] == ['{"late": 1}']


# -- what the model said behind the calls ----------------------------------------------------------


async def test_narration_behind_the_calls_is_no_part_of_a_follow_up_live_or_replayed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    burst = [Step(0.0, "call"), Step(2.0, "text", "the tail")]
    knows = learned(tells=False)
    async with slow_codex(burst, LAST, tells=False, learned=knows) as (codex, backend):
        first = await ask(backend, GO)
        await trio.sleep(5.0)
        live = await ask(backend, followed(GO, first), record=tmp_path)
        assert codex.threads == 1
    (recording,) = await trio.Path(tmp_path).iterdir()
    replay = Replay(Path(recording))
    assert "the tail" in await recording.read_text()
    again = await assembly.recipe(Settings()).run(replay, Collect(), replay.header.turn)
    assert (live.text, Answer(again, 0.0).text) == ("Done.", "Done.")


# -- tools that take free text ---------------------------------------------------------------------


@pytest.mark.parametrize("again", ["ls", '{"input":"ls"}', '{ "input": "ls" }'])
@pytest.mark.parametrize("made", ["ls", '{"input": "ls", "why": "to see"}'])
def test_a_call_of_a_custom_tool_means_its_text(made: str, again: str) -> None:
    turn = Turn(tools=(Tool("shell", kind="custom"),))
    before = [digest(turn, answered("", [Call("c", "shell", words)])) for words in (made, again)]
    other = digest(turn, answered("", [Call("c", "shell", "rm")]))
    assert before[0] == before[1] != other
