"""Follow-ups on three real Codex versions: what the client's tools gave goes to the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import pytest
import trio
from attrs import evolve

from pipeline.loose_json import Json
from pipeline.turn import Tool, Turn
from sinks.chat import ChatCompletion
from sources.app_server.process.pool import Pool
from sources.app_server.turn.kept import KeepOptions
from sources.demo.model import ScriptedModel
from sources.demo.script import SCENARIOS, Says, call

Ask: TypeAlias = Callable[..., Awaitable[ChatCompletion]]
Said: TypeAlias = Callable[..., Turn]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]

TOOLS = (Tool("localSearch"), Tool("readNote"), Tool("exec_command"))
OLD = "0.89.0"
OFF = KeepOptions(most=0)
HOLDING = {"held": KeepOptions(), "let go": OFF}


that_waits = pytest.mark.parametrize("version", ["wheel", "0.166.0"])
"""The old version cannot wait for a client's tool."""


def content(answer: ChatCompletion) -> Any:
    return answer.body["choices"][0]["message"]["content"]


def follow_up(turn: Turn, answer: ChatCompletion, *outputs: str) -> Turn:
    """The request that a client sends once it has run the tools."""
    message = answer.body["choices"][0]["message"]
    items: list[Json] = []
    if message["content"]:
        items.append({"type": "message", "role": "assistant", "content": message["content"]})
    calls = message["tool_calls"]
    made: list[Json] = [
        {"type": "function_call", "call_id": one["id"], **one["function"]} for one in calls
    ]
    given: list[Json] = [
        {"type": "function_call_output", "call_id": one["id"], "output": output}
        for one, output in zip(calls, outputs, strict=True)
    ]
    return evolve(turn, items=(*turn.items, *items, *made, *given))


def outputs_of(request: Json) -> list[tuple[str, str]]:
    items = [item for item in request["input"] if item["type"] == "function_call_output"]
    found: list[tuple[str, str]] = []
    for item in items:
        output = item["output"]
        text = output if isinstance(output, str) else "".join(part["text"] for part in output)
        found.append((item["call_id"], text))
    return found


@pytest.mark.parametrize("keep", HOLDING.values(), ids=HOLDING.keys())
async def test_the_outputs_of_a_burst_reach_the_model_and_are_answered(
    version: str,
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    keep: KeepOptions,
) -> None:
    async with open_codex(keep=keep) as backend:
        turn = said("BURST", tools=TOOLS)
        burst = await ask(backend, turn)
        with trio.fail_after(15):
            answer = await ask(backend, follow_up(turn, burst, "one", "two", "three"))
    request = model.requests[-1]
    if version == OLD:
        last = request["input"][-1]["content"][0]["text"].splitlines()[-3:]
        assert last == [
            '[function_call_output call_id="call_a" output="one"]',
            '[function_call_output call_id="call_b" output="two"]',
            '[function_call_output call_id="call_c" output="three"]',
        ]
        return
    expected = [("call_a", "one"), ("call_b", "two"), ("call_c", "three")]
    assert sorted(outputs_of(request)) == expected
    assert content(answer).startswith("The tool said: ")
    assert "tool_calls" not in answer.body["choices"][0]["message"]


@pytest.mark.parametrize("keep", HOLDING.values(), ids=HOLDING.keys())
async def test_a_tool_under_an_alias_is_followed_up_by_its_own_name(
    version: str,
    open_codex: OpenCodex,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    keep: KeepOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "exec_command" if version == OLD else "client_exec_command"
    monkeypatch.setitem(SCENARIOS, "EXEC", Says((call("e", name, '{"cmd": "ls"}'),)))
    async with open_codex(keep=keep) as backend:
        turn = said("EXEC", tools=TOOLS)
        first = await ask(backend, turn)
        assert first.body["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "exec_command",
            "arguments": '{"cmd": "ls"}',
        }
        with trio.fail_after(15):
            answer = await ask(backend, follow_up(turn, first, "a.md"))
    assert "a.md" in content(answer)
    if version != OLD:
        calls = [i for i in model.requests[-1]["input"] if i["type"] == "function_call"]
        assert [(one["name"], one["arguments"]) for one in calls] == [(name, '{"cmd": "ls"}')]


@that_waits
async def test_a_held_turn_is_continued_and_nothing_is_sent_twice(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel, until: Until
) -> None:
    counters = (await backend.lease()).client.counters
    turn = said("ONECALL", tools=TOOLS)
    first = await ask(backend, turn)
    await until(lambda: len(backend.kept) == 1)
    started = counters["sent thread/start"]
    answer = await ask(backend, follow_up(turn, first, "found it"))
    assert content(answer) == "The tool said: found it"
    assert counters["sent thread/start"] == started
    assert len(model.requests) == 2
    await until(lambda: counters["sent thread/delete"] == 1)
    assert counters["sent turn/interrupt"] == 0
    assert len(backend.kept) == 0


@that_waits
async def test_the_model_reads_its_own_words_though_the_client_wrote_them_anew(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel, until: Until
) -> None:
    turn = said("ONECALL", tools=TOOLS)
    first = await ask(backend, turn)
    await until(lambda: len(backend.kept) == 1)
    *past, call, output = follow_up(turn, first, "found it").items
    assert call["arguments"] == '{"query": "x",  "n": 1.0}'
    anew = [
        {**item, "content": [{"type": "output_text", "text": item["content"]}]}
        if item.get("role") == "assistant"
        else item
        for item in past
    ]
    anew.append({**call, "id": "fc_1", "arguments": '{"n":1,"query":"x"}'})
    answer = await ask(backend, evolve(turn, items=(*anew, output)))
    assert content(answer) == "The tool said: found it"
    started, continued = model.requests
    assert continued["prompt_cache_key"] == started["prompt_cache_key"]
    calls = [item for item in continued["input"] if item["type"] == "function_call"]
    assert [one["arguments"] for one in calls] == [call["arguments"]]


@that_waits
async def test_a_follow_up_that_changed_the_past_gets_a_thread_of_its_own(
    backend: Pool, ask: Ask, said: Said, model: ScriptedModel
) -> None:
    turn = said("ONECALL", tools=TOOLS)
    first = await ask(backend, turn)
    changed = follow_up(said("ONECALL please", tools=TOOLS), first, "found it")
    assert content(await ask(backend, changed)) == "The tool said: found it"
    assert len({request["prompt_cache_key"] for request in model.requests}) == 2


@that_waits
async def test_a_held_turn_that_nobody_follows_up_is_interrupted_once_and_deleted(
    open_codex: OpenCodex, ask: Ask, said: Said, until: Until
) -> None:
    async with open_codex(keep=KeepOptions(seconds=0.2)) as backend:
        client = (await backend.lease()).client
        await ask(backend, said("BURST", tools=TOOLS))
        await until(lambda: client.counters["sent thread/delete"] == 1)
        assert client.counters["sent turn/interrupt"] == 1
        await until(lambda: client.load == 0)


async def test_a_call_that_codex_answers_itself_does_not_go_on_behind_the_client(
    backend: Pool, ask: Ask, said: Said, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setitem(SCENARIOS, "STRANGE", Says((call("x", "strange_tool", "{}"),)))
    client = (await backend.lease()).client
    first = await ask(backend, said("STRANGE", tools=TOOLS))
    assert len(first.body["choices"][0]["message"]["tool_calls"]) == 1
    await until(lambda: client.load == 0)


async def test_a_call_that_codex_answers_itself_is_followed_up_like_any_other(
    backend: Pool,
    ask: Ask,
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCENARIOS, "STRANGE", Says((call("x", "strange_tool", "{}"),)))
    turn = said("STRANGE", tools=TOOLS)
    first = await ask(backend, turn)
    with trio.fail_after(10):
        answer = await ask(backend, follow_up(turn, first, "known after all"))
    assert "known after all" in content(answer)


@that_waits
async def test_the_outputs_of_a_burst_of_which_codex_answers_a_part_all_reach_the_model(
    backend: Pool,
    ask: Ask,
    said: Said,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    until: Until,
) -> None:
    mixed = Says((call("a", "localSearch", "{}"), call("x", "strange_tool", "{}")))
    monkeypatch.setitem(SCENARIOS, "MIXED", mixed)
    turn = said("MIXED", tools=TOOLS)
    first = await ask(backend, turn)
    client = (await backend.lease()).client
    await until(lambda: client.load == 0)  # its thread is not kept
    with trio.fail_after(10):
        await ask(backend, follow_up(turn, first, "found it", "known after all"))
    outputs = outputs_of(model.requests[-1])
    assert outputs == [("call_a", "found it"), ("call_x", "known after all")]
