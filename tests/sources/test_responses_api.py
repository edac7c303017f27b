from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import pytest
import trio

from pipeline import assembly
from pipeline.assembly import Settings, chat_options
from pipeline.errors import ProxyError
from pipeline.events import Event, Failed, TextDelta, ToolCall, TurnEnd
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson
from sinks.collect import Collect
from sources.demo.model import ScriptedModel
from sources.demo.script import SCENARIOS, Says, call, text
from sources.responses_api import ResponsesApiSource, open_client
from sources.responses_request import ResponsesApi

Message: TypeAlias = dict[str, Any]

# The tool that is called is not the first: a name that was lost would be inferred as the other.
TOOLS = (Tool("readNote"), Tool("localSearch"))


def user(words: str, **fields: Any) -> Turn:
    said = {"type": "message", "role": "user", "content": words}
    return Turn(model="gpt-5", items=(said,), **fields)


async def events_of(source: ResponsesApiSource, turn: Turn, **settings: Any) -> list[Event]:
    with trio.fail_after(30):
        return await assembly.recipe(Settings(**settings)).run(source, Collect(), turn)


async def ask(url: str, turn: Turn, **settings: Any) -> Message:
    """The choice a chat client gets, through the whole recipe."""
    recipe, options = Settings(**settings), chat_options(Settings(**settings), turn)
    source = ResponsesApiSource(ResponsesApi(url))
    with trio.fail_after(30):
        answer = await assembly.recipe(recipe).run(source, ChatJson(options), turn)
    return {**answer.body["choices"][0], "usage": answer.body["usage"]}


def words(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


# -- a model that does as it should ----------------------------------------------------------------


async def test_text_arrives_with_its_usage() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("TEXT"))
    assert choice["message"]["content"] == "Hello, wörld 🌍!"
    assert choice["finish_reason"] == "stop"
    assert choice["usage"]["total_tokens"] == 153


async def test_a_call_arrives_with_its_arguments_to_the_letter() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("ONECALL", tools=TOOLS))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    (made,) = choice["message"]["tool_calls"]
    assert made["id"] == "call_a"
    assert made["function"] == {"name": "localSearch", "arguments": '{"query": "x",  "n": 1.0}'}


async def test_a_burst_of_calls_arrives_whole_and_in_order() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("BURST", tools=TOOLS))
    calls = choice["message"]["tool_calls"]
    assert [made["id"] for made in calls] == ["call_a", "call_b", "call_c"]


async def test_a_call_written_as_text_is_a_call() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("USETOOL", tools=TOOLS))
    (made,) = choice["message"]["tool_calls"]
    assert made["function"]["name"] == "localSearch"
    assert json.loads(made["function"]["arguments"])["query"] == "meeting notes & todos"


async def test_reasoning_arrives_apart_from_the_answer() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("REASON"))
    assert choice["message"]["reasoning_content"] == "**Thinking** hard"
    assert choice["message"]["content"] == "42"


async def test_an_answer_cut_by_a_limit_finishes_with_length() -> None:
    async with ScriptedModel().serving() as url:
        choice = await ask(url, user("HALF"))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Half", "length")


async def test_the_history_goes_along_as_it_is() -> None:
    made = {"type": "function_call", "call_id": "c", "name": "localSearch", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "12 °C"}
    turn = Turn(items=({"type": "message", "role": "user", "content": "?"}, made, result))
    model = ScriptedModel()
    async with model.serving() as url:
        choice = await ask(url, turn)
    assert choice["message"]["content"] == "The tool said: 12 °C"
    assert model.requests[0]["input"] == list(turn.items)


async def test_turns_that_share_a_client_share_its_connection() -> None:
    ports: set[int] = set()

    class Noting(ScriptedModel):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                ports.add(scope["client"][1])
            await super().__call__(scope, receive, send)

    turn = user("E400")
    async with Noting().serving() as url, open_client() as client:
        for _ in range(3):
            await events_of(ResponsesApiSource(ResponsesApi(url), client), turn)
        assert not client.is_closed
    assert len(ports) == 1


async def test_a_backend_on_this_machine_is_not_asked_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with ScriptedModel().serving() as url:
        assert (await ask(url, user("TEXT")))["finish_reason"] == "stop"


# -- a model that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "code", "message"),
    [
        ("E400", 400, "invalid_request_error", "the request is wrong"),
        ("E401", 401, "invalid_api_key", "bad key (the backend rejected the key"),
        ("E429", 429, "insufficient_quota", "You've hit your usage limit"),
        ("E500", 500, "server_error", "boom"),
    ],
)
async def test_a_refusal_reaches_the_client_as_what_it_is(
    words: str, status: int, code: str, message: str
) -> None:
    async with ScriptedModel().serving() as url:
        with pytest.raises(ProxyError) as raised:
            await ask(url, user(words))
    failure = raised.value.failure
    assert (failure.status, failure.code) == (status, code)
    assert failure.message.startswith(message)


async def test_a_stream_that_ends_without_an_end_is_the_guards_to_judge() -> None:
    async with ScriptedModel().serving() as url:
        source = ResponsesApiSource(ResponsesApi(url))
        events = await events_of(source, user("CUT"))
    assert words(events) == "Hello par"
    *_, failed, end = events
    assert isinstance(failed, Failed)
    assert failed.error.code == "stream_ended_early"
    assert isinstance(end, TurnEnd)


# -- leaving ---------------------------------------------------------------------------------------


class Watched(ScriptedModel):
    """Tells when a client has left in the middle of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.left = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self.leavers:
                self.left.set()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_cut_after_the_calls_closes_the_request(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    calls = (call("a", "localSearch", "{}"), call("b", "readNote", "{}"))
    says = Says((text("On it."), *calls), ending="hang")
    monkeypatch.setitem(SCENARIOS, "CALLHANG", says)
    model, turn = Watched(), user("CALLHANG", tools=TOOLS)
    async with model.serving() as url, open_client() as client:
        source = ResponsesApiSource(ResponsesApi(url), client if shared else None)
        events = await events_of(source, turn, stop_after_tools_mode="first")
        assert [event.name for event in events if isinstance(event, ToolCall)] == ["localSearch"]
        with trio.fail_after(30):
            await model.left.wait()
    assert model.leavers == 1


async def test_a_client_that_has_enough_closes_the_request() -> None:
    model, turn = Watched(), user("HANG")
    async with model.serving() as url, open_client() as client:
        source = ResponsesApiSource(ResponsesApi(url), client)
        with trio.fail_after(30):
            async with assembly.recipe(Settings()).open(source, turn) as chain:
                assert "Wait".startswith(words(await chain.receive()))
            await model.left.wait()
    assert model.leavers == 1


@pytest.mark.parametrize("words", ["HANG", "SILENT"])
async def test_a_client_that_leaves_closes_the_request(words: str) -> None:
    model, turn = Watched(), user(words)
    async with model.serving() as url, open_client() as client:
        heard = trio.Event()
        source = ResponsesApiSource(
            ResponsesApi(url), client, watch=lambda record, events, reasons: heard.set()
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(assembly.recipe(Settings()).run, source, Collect(), turn)
            with trio.fail_after(30):
                await heard.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            await model.left.wait()
    assert model.leavers == 1
