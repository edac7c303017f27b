"""Threads are kept for their owners, and found again by what was said, not by how it is written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pipeline.loose_json import Json
from pipeline.turn import OutputSchema, Tool, Turn
from sources.app_server.turn.kept import KeepOptions, KeptThread, KeptThreads
from sources.app_server.turn.meaning import Call, digest, without_outputs
from sources.app_server.turn.session import Session

ASKED: Json = {"type": "message", "role": "user", "content": "What is new?"}
SAID: Json = {"type": "message", "role": "assistant", "content": "Let me look."}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OTHER: Json = {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "nothing"}
OTHER_OUTPUT: Json = {"type": "function_call_output", "call_id": "c2", "output": "much"}
TURN = Turn(model="m", instructions="Be brief.", items=(ASKED,), tools=(Tool("f"), Tool("g")))


class FakeSession:
    """Remembers whether it was let go."""

    alive = True

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        self.gone = trio.Event()
        self.place = SimpleNamespace(nursery=nursery)

    async def let_go(self) -> None:
        self.gone.set()


def kept(session: FakeSession, *calls: Json, turn: Turn = TURN) -> KeptThread:
    made = tuple(Call(call["call_id"], call["name"], call["arguments"]) for call in calls)
    return KeptThread(cast(Session, session), turn, "Let me look.", made)


def continues(turn: Turn, thread: KeptThread) -> bool:
    before, outputs = without_outputs(turn.items)
    return digest(turn, before) in thread.digests and thread.waits_for(outputs)


FOLLOW_UPS: dict[str, tuple[tuple[Json, ...], bool]] = {
    "everything": ((ASKED, SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT), True),
    "no text": ((ASKED, CALL, OTHER, OUTPUT, OTHER_OUTPUT), True),
    "outputs in another order": ((ASKED, SAID, CALL, OTHER, OTHER_OUTPUT, OUTPUT), True),
    "with reasoning": (
        (ASKED, {"type": "reasoning", "id": "rs"}, SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        True,
    ),
    "arguments written anew": (
        (ASKED, SAID, {**CALL, "arguments": '{ "a": 1.0 }'}, OTHER, OUTPUT, OTHER_OUTPUT),
        True,
    ),
    "text in parts": (
        (
            {**ASKED, "content": [{"type": "input_text", "text": "What is new?"}]},
            {**SAID, "content": [{"type": "output_text", "text": "Let me look."}]},
            *(CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        ),
        True,
    ),
    "text of two messages": (
        (
            ASKED,
            {**SAID, "content": "Let me "},
            CALL,
            {**SAID, "content": "look."},
            *(OTHER, OUTPUT, OTHER_OUTPUT),
        ),
        True,
    ),
    "empty content and ids": (
        (
            {**ASKED, "id": "msg_1"},
            {**SAID, "content": ""},
            {**CALL, "id": "fc_1", "status": "completed"},
            *(OTHER, OUTPUT, OTHER_OUTPUT),
        ),
        True,
    ),
    "text that is no JSON for arguments": (
        (ASKED, SAID, {**CALL, "arguments": '{"a":1'}, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "a number beyond those that are exact in every language": (
        (
            *(ASKED, SAID, {**CALL, "arguments": '{"a":9007199254740993.0}'}),
            *(OTHER, OUTPUT, OTHER_OUTPUT),
        ),
        False,
    ),
    "true for 1": (
        (ASKED, SAID, {**CALL, "arguments": '{"a":true}'}, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "a picture in the question": (
        (
            {**ASKED, "content": [{"type": "input_image", "image_url": "data:"}]},
            *(SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        ),
        False,
    ),
    "another role": (
        ({**ASKED, "role": "developer"}, SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "another tool": (
        (ASKED, SAID, {**CALL, "name": "g"}, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "calls in another order": ((ASKED, SAID, OTHER, CALL, OUTPUT, OTHER_OUTPUT), False),
    "other text": (
        (ASKED, {**SAID, "content": "Hm."}, CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "other arguments": (
        (ASKED, SAID, {**CALL, "arguments": "{}"}, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "another history": (
        ({**ASKED, "content": "?"}, SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT),
        False,
    ),
    "one output only": ((ASKED, SAID, CALL, OTHER, OUTPUT), False),
    "a question behind": ((ASKED, SAID, CALL, OTHER, OUTPUT, OTHER_OUTPUT, ASKED), False),
    "a question between": ((ASKED, ASKED, CALL, OTHER, OUTPUT, OTHER_OUTPUT), False),
}


@pytest.mark.parametrize("name", FOLLOW_UPS)
async def test_a_follow_up_continues_only_what_it_repeats(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    items, matches = FOLLOW_UPS[name]
    threads = KeptThreads()
    async with trio.open_nursery() as nursery:
        threads.keep(kept(FakeSession(nursery), CALL, OTHER))
        found = threads.take(evolve(TURN, items=items))
        assert (found is not None) == matches
        if found is not None:
            assert found[1] == {"c1": "nothing", "c2": "much"}
            assert len(threads) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"instructions": "Be long."},
        {"tools": (Tool("f"),)},
        {"tool_choice": "required"},
        {"effort": "high"},
        {"owner": "somebody else"},
        {"output_schema": OutputSchema({"type": "object"})},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_request_continues_nothing(changed: dict[str, Any]) -> None:
    items = (ASKED, SAID, CALL, OUTPUT)
    thread = kept(FakeSession(), CALL)
    assert continues(evolve(TURN, items=items), thread)
    assert not continues(evolve(TURN, items=items, **changed), thread)


@pytest.mark.parametrize(
    "changed",
    [{"stream": True}, {"include_usage": True}, {"stop": ("x",)}, {"output_mode": "auto"}],
)
def test_another_form_of_the_answer_is_no_other_request(changed: dict[str, Any]) -> None:
    items = (ASKED, CALL, OUTPUT)
    assert continues(evolve(TURN, items=items, **changed), kept(FakeSession(), CALL))


async def test_a_kept_thread_is_let_go_when_its_time_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    threads, start = KeptThreads(KeepOptions(seconds=60)), trio.current_time()
    async with trio.open_nursery() as nursery:
        session = FakeSession(nursery)
        threads.keep(kept(session, CALL))
    assert session.gone.is_set()
    assert trio.current_time() == pytest.approx(start + 60)
    assert threads.take(evolve(TURN, items=(ASKED, CALL, OUTPUT))) is None


async def test_the_thread_unused_for_longest_is_let_go_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    threads = KeptThreads(KeepOptions(most=1))
    async with trio.open_nursery() as nursery:
        first, second = FakeSession(nursery), FakeSession(nursery)
        threads.keep(kept(first, CALL))
        await trio.testing.wait_all_tasks_blocked()
        threads.keep(kept(second, OTHER))
        await trio.testing.wait_all_tasks_blocked()
        assert (first.gone.is_set(), second.gone.is_set(), len(threads)) == (True, False, 1)
        nursery.cancel_scope.cancel()


async def test_a_thread_whose_backend_died_is_not_continued() -> None:
    threads = KeptThreads()
    async with trio.open_nursery() as nursery:
        session = FakeSession(nursery)
        threads.keep(kept(session, CALL))
        await trio.testing.wait_all_tasks_blocked()
        session.alive = False
        assert threads.take(evolve(TURN, items=(ASKED, CALL, OUTPUT))) is None
        nursery.cancel_scope.cancel()


async def test_equal_call_ids_of_two_owners_do_not_evict_each_other() -> None:
    threads = KeptThreads()
    async with trio.open_nursery() as nursery:
        sessions = {owner: FakeSession(nursery) for owner in ("ann", "bob")}
        for owner, session in sessions.items():
            threads.keep(kept(session, CALL, turn=evolve(TURN, owner=owner)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(threads) == 2
        follow_up = evolve(TURN, items=(ASKED, CALL, OUTPUT))
        assert threads.take(evolve(follow_up, owner="eve")) is None
        for owner, session in sessions.items():
            found = threads.take(evolve(follow_up, owner=owner))
            assert found is not None
            assert cast(FakeSession, found[0].session) is session
            assert not session.gone.is_set()
        nursery.cancel_scope.cancel()


async def test_the_same_conversation_again_takes_the_place_of_the_first() -> None:
    threads = KeptThreads()
    async with trio.open_nursery() as nursery:
        first, second = FakeSession(nursery), FakeSession(nursery)
        for session in (first, second):
            threads.keep(kept(session, CALL))
            await trio.testing.wait_all_tasks_blocked()
        assert (first.gone.is_set(), second.gone.is_set(), len(threads)) == (True, False, 1)
        nursery.cancel_scope.cancel()


async def test_narration_that_the_client_was_not_given_need_not_be_repeated() -> None:
    made = (Call("c1", "f", '{"a":1}'),)
    session = cast(Session, FakeSession())
    thread = KeptThread(session, TURN, "Let me look. Done soon.", made, "Let me look.")
    for text, matches in {
        "Let me look.": True,
        "Let me look. Done soon.": True,
        "Hm": False,
    }.items():
        said = {**SAID, "content": text}
        assert continues(evolve(TURN, items=(ASKED, said, CALL, OUTPUT)), thread) == matches


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.booleans())
def test_arguments_mean_the_same_however_they_are_written(
    arguments: Json, ascii_only: bool
) -> None:
    made = {**CALL, "arguments": json.dumps(arguments)}
    again = json.dumps(arguments, indent=2, sort_keys=True, ensure_ascii=ascii_only)
    repeated = evolve(TURN, items=(ASKED, SAID, {**made, "arguments": again}, OUTPUT))
    assert continues(repeated, kept(FakeSession(), made))


@given(VALUES, VALUES)
def test_arguments_of_another_value_mean_something_else(one: Any, other: Any) -> None:
    made = {**CALL, "arguments": json.dumps({"x": one})}
    changed = {**CALL, "arguments": json.dumps({"x": other})}
    repeated = evolve(TURN, items=(ASKED, SAID, changed, OUTPUT))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert continues(repeated, kept(FakeSession(), made)) == same


def test_what_the_model_said_last_is_one_step_with_what_it_says_next() -> None:
    begun = {**SAID, "content": "Let me "}
    thread = KeptThread(
        cast(Session, FakeSession()),
        evolve(TURN, items=(ASKED, begun)),
        "look.",
        (Call("c1", "f", '{"a":1}'),),
    )
    assert continues(evolve(TURN, items=(ASKED, SAID, CALL, OUTPUT)), thread)
    assert not continues(evolve(TURN, items=(ASKED, CALL, OUTPUT)), thread)


def test_another_request_of_the_same_conversation_is_the_same() -> None:
    thread = kept(FakeSession(), CALL, turn=evolve(TURN, request_id="req_1", seed="chatcmpl-1"))
    again = evolve(TURN, request_id="req_2", seed="chatcmpl-2", prompt_cache_key="k")
    assert continues(evolve(again, items=(ASKED, CALL, OUTPUT)), thread)
