"""Models that take their time, on real Codex binaries and over HTTP, as clients see them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from typing import Any, Final, TypeAlias

import httpx
import pytest
import trio
from attrs import frozen

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.serve.backends import CodexBackend, open_backend
from sources.demo.model import ScriptedModel
from tests.real.conftest import OpenCodex
from tests.serve.scripted import CHAT, Served, served, tools
from tests.serve.wire import chunks, folded

NEWEST: Final = "0.169.0"
UNTOLD: Final = "0.144.4"
"""It does not tell when a response ends while calls wait for their outputs."""
OLDEST: Final = "0.89.0"
TOLD: Final = ("wheel", NEWEST)
RESPONSES: Final = "/v1/responses"
NAMES: Final = ("localSearch", "readNote")
CHAT_TOOLS: Final = tools(*NAMES)
FLAT_TOOLS: Final[list[Json]] = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    for name in NAMES
]
OpenEndpoint: TypeAlias = Callable[..., AbstractAsyncContextManager[Served]]

SLOW = 'CALL localSearch {"query":"a"}\nWAIT 2\nCALL readNote {"path":"b.md"}'
AT_WORK = (
    'THINK Hm\nSAY First\nWAIT 1\nCALL localSearch {"query":"a"}\n'
    'THINK Hm\nSAY , then\nWAIT 2\nCALL readNote {"path":"b.md"}\nWAIT 0.6\nSAY the tail'
)
"""Silences before, between and behind the calls, with reasoning and text in them."""
TRICKLE = 'CALL localSearch {"query":"a"}\nTRICKLE 2\nCALL readNote {"path":"b.md"}'
BLOCK = "<use_tool>\\n<name>{}</name>\\n<query>a</query>\\n</use_tool>"
BLOCKS = f"SAY {BLOCK.format(NAMES[0])}\nWAIT 0.6\nSAY Then\nWAIT 0.6\nSAY {BLOCK.format(NAMES[1])}"
LOOP = "\nTHEN\n".join(f'CALL localSearch {{"query":"{number}"}}' for number in range(6))


@pytest.fixture
def endpoint(open_codex: OpenCodex) -> OpenEndpoint:
    @asynccontextmanager
    async def opened(**flags: Any) -> AsyncGenerator[Served]:
        async with open_codex() as pool:
            with closing(CodexBackend(pool, Settings(**flags), "codex", "")) as backend:
                async with served(backend, **flags) as here:
                    yield here

    return opened


@pytest.fixture
async def api(model_url: str) -> AsyncGenerator[Served]:
    async with (
        open_backend(Settings(backend=f"{model_url}/responses")) as backend,
        served(backend) as here,
    ):
        yield here


@frozen
class Got:
    """What a client read out of an answer, through whatever API."""

    calls: list[tuple[str, str]]
    tokens: int | None
    text: str
    ids: list[str]


def _from_chat(answer: httpx.Response, *, stream: bool) -> Got:
    assert answer.status_code == 200, answer.text
    if stream:
        message = folded(chunks(answer.text))[0]
        assert '"tool_call_truncated":false' in answer.text
        usages = [chunk["usage"] for chunk in chunks(answer.text) if chunk.get("usage")]
        usage = usages[0] if usages else None
    else:
        message, usage = answer.json()["choices"][0]["message"], answer.json()["usage"]
        assert answer.headers["x-codex-tool-call-truncated"] == "false"
    calls: list[Json] = message.get("tool_calls") or []
    made = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    tokens = usage and usage["total_tokens"]
    return Got(made, tokens, message.get("content") or "", [call["id"] for call in calls])


def _from_responses(answer: httpx.Response, *, stream: bool) -> Got:
    assert answer.status_code == 200, answer.text
    if stream:
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        (last,) = [e for e in map(json.loads, lines) if e["type"] == "response.completed"]
        response = last["response"]
    else:
        response = answer.json()
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    said = [item for item in response["output"] if item["type"] == "message"]
    text = "".join(part["text"] for item in said for part in item["content"])
    tokens = response["usage"] and response["usage"]["total_tokens"]
    made = [(call["name"], call["arguments"]) for call in calls]
    return Got(made, tokens, text, [call["call_id"] for call in calls])


async def chat(here: Served, words: str, *, stream: bool) -> Got:
    messages = [{"role": "user", "content": words}]
    body: Json = {"model": "gpt-5", "messages": messages, "tools": CHAT_TOOLS, "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return _from_chat(await here.client.post(CHAT, json={**body, **options}), stream=stream)


async def respond(here: Served, words: str, *, stream: bool) -> Got:
    body = {"model": "gpt-5", "input": words, "tools": FLAT_TOOLS, "stream": stream}
    return _from_responses(await here.client.post(RESPONSES, json=body), stream=stream)


async def in_every_form(here: Served, words: str) -> list[Got]:
    """The same asked through both APIs, streamed and not, all at once."""
    forms: Sequence[Callable[[], Awaitable[Got]]] = [
        partial(ask, here, words, stream=stream)
        for ask in (chat, respond)
        for stream in (True, False)
    ]
    got: list[Got] = []
    async with trio.open_nursery() as nursery:

        async def run(form: Callable[[], Awaitable[Got]]) -> None:
            got.append(await form())

        for form in forms:
            nursery.start_soon(run, form)
    return got


A, B = ("localSearch", '{"query":"a"}'), ("readNote", '{"path":"b.md"}')


@pytest.mark.parametrize("version", TOLD)
@pytest.mark.parametrize("words", [SLOW, TRICKLE, AT_WORK], ids=["whole", "trickling", "at work"])
async def test_two_calls_two_seconds_apart_arrive_whole_with_their_cost(
    words: str, endpoint: OpenEndpoint
) -> None:
    async with endpoint() as here:
        for got in await in_every_form(here, words):
            assert (got.calls, got.tokens) == ([A, B], 1010)
            assert got.text == ("First, then" if words is AT_WORK else "")


@pytest.mark.parametrize("version", [OLDEST])
async def test_the_oldest_codex_loses_no_slow_call_either(endpoint: OpenEndpoint) -> None:
    async with endpoint() as here:
        for got in await in_every_form(here, "SLOWBURST"):
            assert (got.calls, got.tokens) == ([A, B], 153)


@pytest.mark.parametrize("words", [SLOW, TRICKLE, AT_WORK], ids=["whole", "trickling", "at work"])
async def test_an_api_over_http_loses_no_slow_call(words: str, api: Served) -> None:
    for got in await in_every_form(api, words):
        assert (got.calls, got.tokens) == ([A, B], 1010)
        assert got.text == ("First, then" if words is AT_WORK else "")


@pytest.mark.parametrize("version", ["wheel", OLDEST])
async def test_two_blocks_with_narration_between_them_are_two_calls(endpoint: OpenEndpoint) -> None:
    async with endpoint() as here:
        for got in await in_every_form(here, BLOCKS):
            assert [name for name, _ in got.calls] == list(NAMES)
            assert (got.text, got.tokens) == ("Then", 1010)


# -- tool loops ------------------------------------------------------------------------------------


async def loop_of_chats(here: Served, words: str) -> list[Got]:
    """Run every tool until there is an answer without a call."""
    messages: list[Json] = [{"role": "user", "content": words}]
    answers: list[Got] = []
    for _ in range(10):
        body = {"model": "gpt-5", "messages": messages, "tools": CHAT_TOOLS}
        answer = await here.client.post(CHAT, json=body)
        answers.append(_from_chat(answer, stream=False))
        if not answers[-1].calls:
            return answers
        messages.append(answer.json()["choices"][0]["message"])
        messages += [
            {"role": "tool", "tool_call_id": call_id, "content": "found"}
            for call_id in answers[-1].ids
        ]
    raise AssertionError("the loop does not end")


async def loop_of_responses(here: Served, words: str) -> list[Got]:
    asked: Json = {"model": "gpt-5", "input": words, "tools": FLAT_TOOLS}
    answers: list[Got] = []
    for _ in range(10):
        answer = await here.client.post(RESPONSES, json=asked)
        answers.append(_from_responses(answer, stream=False))
        if not answers[-1].calls:
            return answers
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": "found"}
            for call_id in answers[-1].ids
        ]
        named = {"previous_response_id": answer.json()["id"], "input": outputs}
        asked = {"model": "gpt-5", "tools": FLAT_TOOLS, **named}
    raise AssertionError("the loop does not end")


@pytest.mark.parametrize("version", TOLD)
@pytest.mark.parametrize("run_loop", [loop_of_chats, loop_of_responses])
async def test_a_loop_of_six_calls_has_the_true_cost_of_each(
    run_loop: Callable[[Served, str], Awaitable[list[Got]]],
    endpoint: OpenEndpoint,
    model: ScriptedModel,
) -> None:
    async with endpoint() as here:
        answers = await run_loop(here, LOOP)
    assert [got.tokens for got in answers] == [*(1010 + 101 * number for number in range(6)), 153]
    assert answers[-1].text == "The tool said: found"
    threads = {request.get("prompt_cache_key") for request in model.requests}
    assert (len(model.requests), len(threads)) == (7, 1), "the thread was kept"


@pytest.mark.parametrize("version", [UNTOLD])
async def test_a_codex_that_does_not_tell_loses_no_call_and_miscounts_no_cost(
    endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    async with endpoint() as here:
        assert (await chat(here, "TEXT", stream=False)).tokens == 153  # now it is known
        model.requests.clear()
        answers = await loop_of_chats(here, SLOW)
    assert [call for got in answers for call in got.calls] == [A, B]
    assert [got.tokens for got in answers] == [None, None, 153]
    assert answers[-1].text == "The tool said: found"
    assert len(model.requests) == 2


# -- whose a kept thread is ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["wheel"])
@pytest.mark.parametrize("second", ["ann", "bob"])
async def test_a_kept_thread_is_continued_by_its_owner_alone(
    second: str, endpoint: OpenEndpoint, model: ScriptedModel
) -> None:
    keys = {"ann": "secret-of-ann", "bob": "secret-of-bob"}
    flags = {"api_keys": ",".join(f"{name}:{key}" for name, key in keys.items())}
    question = {"role": "user", "content": 'CALL localSearch {"query":"a"}'}
    async with endpoint(**flags) as here:

        async def ask(name: str, *messages: Json) -> Json:
            body = {"model": "gpt-5", "messages": messages, "tools": CHAT_TOOLS}
            head = {"authorization": f"Bearer {keys[name]}"}
            answer = await here.client.post(CHAT, json=body, headers=head)
            made: Json = answer.json()["choices"][0]["message"]
            return made

        called = await ask("ann", question)
        output = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "x"}
        assert (await ask(second, question, called, output))["content"] == "The tool said: x"
    first, last = (request["prompt_cache_key"] for request in model.requests)
    assert (first == last) == (second == "ann")
