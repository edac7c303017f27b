"""The Responses API on a WebSocket, as Codex speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import msgspec
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from pipeline.chain import respond
from pipeline.events import ReasoningItem, TextDelta, TurnEnd
from pipeline.recipe import Pipeline
from pipeline.serve.observe.exchange import Exchange
from pipeline.serve.routes import websocket
from sinks.responses import ResponsesMessages, ResponsesOptions
from tests.serve.asking import look_up
from tests.serve.scripted import (
    BROKEN,
    FAILS,
    HELLO,
    SOON,
    ScriptedBackend,
    ScriptedTurn,
    Served,
    call,
    served,
)
from tests.support.responses_automaton import check_events

Json: TypeAlias = dict[str, Any]
LAST = {"response.completed", "response.failed", "error"}


@asynccontextmanager
async def spoken(here: Served, **headers: str) -> AsyncGenerator[WebSocketConnection]:
    url = f"ws{here.url.removeprefix('http')}/v1/responses"
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    async with open_websocket_url(url, extra_headers=pairs) as socket:
        yield socket


async def say(socket: WebSocketConnection, said: Any, **more: Any) -> None:
    request = {"type": "response.create", "model": "gpt-5", "input": said, "store": False}
    await socket.send_message(msgspec.json.encode(request | more).decode())


async def heard(socket: WebSocketConnection) -> list[Json]:
    """The events of one answer."""
    events: list[Json] = []
    with trio.fail_after(SOON):
        while not events or events[-1]["type"] not in LAST:
            events.append(msgspec.json.decode(await socket.get_message()))
    return events


def user(words: str) -> Json:
    return {"type": "message", "role": "user", "content": words}


async def test_the_line_tells_what_the_client_says_of_itself_in_headers_or_in_the_request() -> None:
    headers = {"session-id": "s-1", "x-openai-subagent": "review"}
    async with served(ScriptedBackend(HELLO)) as here, spoken(here, **headers) as socket:
        await say(socket, "Hi")
        await heard(socket)
        await say(socket, "Hi", client_metadata={"session_id": "s-2", "thread_id": "t-2"})
        await heard(socket)
        first, second = await here.until_logged(2)
    assert (first["session_id"], first["subagent"]) == ("s-1", "review")
    assert (first["output_mode"], first["stop_after_tools_mode"]) == ("auto", "burst")
    assert (second["session_id"], second["conversation_id"]) == ("s-2", "t-2")


async def test_a_request_is_answered_with_the_events_of_a_stream() -> None:
    async with served(ScriptedBackend(HELLO)) as here, spoken(here) as socket:
        await say(socket, "Hi")
        response = check_events(await heard(socket))
        (line,) = await here.until_logged()
    assert response["output"][0]["content"][0]["text"] == "Hello, world"
    assert (line["method"], line["status"], line["stream"]) == ("WS", 200, True)
    assert line["ttft_ms"] > 0


async def test_an_operator_may_have_what_is_said_on_a_socket_logged() -> None:
    backend = ScriptedBackend(HELLO)
    async with served(backend, log_content=True) as here, spoken(here) as socket:
        await say(socket, "How are you?")
        messages = await heard(socket)
        await here.until_logged()
        assert "How are you?" in str(here.lines("request content"))
        logged = "".join(line["data"] for line in here.lines("answer content"))
    assert [msgspec.json.decode(line) for line in logged.splitlines()] == messages


async def test_many_requests_share_a_socket_and_build_on_each_other_unstored() -> None:
    backend = ScriptedBackend(lambda turn: (call("a"), TurnEnd()) if len(turn.items) < 3 else HELLO)
    async with served(backend) as here, spoken(here) as socket:
        tools = [{"type": "function", "name": "look"}]
        await say(socket, [], generate=False, tools=tools)
        prepared = check_events(await heard(socket))
        assert prepared["output"] == []
        assert backend.asked == []
        await say(socket, [user("Hi")], previous_response_id=prepared["id"], tools=tools)
        called = check_events(await heard(socket))
        output = {"type": "function_call_output", "call_id": "call_a", "output": "42"}
        await say(socket, [output], previous_response_id=called["id"], tools=tools)
        final = check_events(await heard(socket))
        assert await here.server.store.get("anybody", called["id"]) is None
    assert final["output"][0]["content"][0]["text"] == "Hello, world"
    kinds = [item.get("type") for item in backend.asked[-1].items]
    assert kinds == ["message", "function_call", "function_call_output"]


async def test_tools_that_came_as_an_item_are_remembered_with_it() -> None:
    backend = ScriptedBackend(lambda turn: (call("a"), TurnEnd()) if len(turn.items) < 3 else HELLO)
    more: Json = {"type": "additional_tools", "role": "developer"}
    more["tools"] = [{"type": "function", "name": "look"}]
    async with served(backend) as here, spoken(here) as socket:
        await say(socket, [more, user("Hi")])
        called = check_events(await heard(socket))
        output = {"type": "function_call_output", "call_id": "call_a", "output": "42"}
        await say(socket, [output], previous_response_id=called["id"])
        check_events(await heard(socket))
    assert [tool.name for tool in backend.asked[-1].tools] == ["look"]


@pytest.mark.parametrize(
    ("message", "status", "code", "param"),
    [
        ("{", 400, "invalid_request_error", None),
        ("[]", 400, "invalid_request_error", None),
        ('{"type":"session.update"}', 400, "invalid_request_error", "type"),
        (
            '{"type":"response.create","model":"m","input":"x","generate":"x"}',
            400,
            "invalid_request_error",
            "generate",
        ),
        ('{"type":"response.create","input":"x"}', 400, "invalid_request_error", "model"),
        (
            '{"type":"response.create","model":"m","input":"x","background":true}',
            400,
            "invalid_request_error",
            "background",
        ),
        (
            '{"type":"response.create","model":"m","input":"x","previous_response_id":"resp_no"}',
            400,
            "previous_response_not_found",
            "previous_response_id",
        ),
    ],
)
async def test_a_wrong_request_is_an_error_with_a_status_and_the_socket_stays(
    message: str, status: int, code: str, param: str | None
) -> None:
    async with served(ScriptedBackend(HELLO)) as here, spoken(here) as socket:
        await socket.send_message(message)
        (error,) = await heard(socket)
        assert (error["status"], error["error"]["code"]) == (status, code)
        assert error["error"]["param"] == param
        await say(socket, "Hi")
        check_events(await heard(socket))


async def test_a_turn_that_fails_at_once_is_an_error_with_its_status() -> None:
    async with served(ScriptedBackend(FAILS)) as here, spoken(here) as socket:
        await say(socket, "Hi")
        (error,) = await heard(socket)
    assert (error["status"], error["error"]["code"]) == (BROKEN.status, BROKEN.code)


async def test_a_turn_that_fails_later_is_a_failed_response() -> None:
    async with served(ScriptedBackend((TextDelta("Hel"), *FAILS))) as here, spoken(here) as socket:
        for _ in range(2):  # nothing of the first is left to be taken for the second
            await say(socket, "Hi")
            events = await heard(socket)
            assert events[0]["type"] == "response.created"
            assert events[-1]["type"] == "response.failed"


async def test_a_bug_is_an_error_and_the_socket_stays() -> None:
    backend = ScriptedBackend((RuntimeError("oops"),))
    async with served(backend) as here, spoken(here) as socket:
        for _ in range(2):
            await say(socket, "Hi")
            (error,) = await heard(socket)
            assert error["status"] == 500
        assert here.lines("a request on a WebSocket broke")


async def test_what_breaks_in_the_middle_is_stored_before_its_end_is_sent() -> None:
    backend = ScriptedBackend((TextDelta("Hel"), ValueError("a secret of ours")))
    async with served(backend) as here, spoken(here) as socket:
        await say(socket, "Hi", store=True)
        failed = (await heard(socket))[-1]["response"]
        assert (await look_up(here, failed["id"])).json() == failed
        line = next(line for line in await here.until_logged(2) if line["method"] == "WS")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert line["request_id"] in failed["error"]["message"]
    assert line["error_code"] == "internal_error"


async def test_a_silence_is_broken() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    async with served(backend, ping_interval=0.05) as here, spoken(here) as socket:
        await say(socket, "Hi")
        first = [msgspec.json.decode(await socket.get_message()) for _ in range(4)]
        go.set()
        check_events(first + await heard(socket))
    assert [event["type"] for event in first].count("keepalive") == 2


async def test_a_sign_of_life_never_overtakes_what_a_slow_client_has_yet_to_read(
    autojump_clock: trio.abc.Clock,
) -> None:
    reads, late, sent = trio.Event(), trio.Event(), list[Json]()

    async def send(message: Json) -> None:
        sent.append(msgspec.json.decode(message["text"]))
        await reads.wait()

    sink = ResponsesMessages(ResponsesOptions())
    writer = websocket.Writer(send, Exchange.of("WS", "/", None))

    async def answer() -> None:
        script = (TextDelta("Hel"), TextDelta("lo"), late, TurnEnd())
        async with Pipeline().open(ScriptedTurn(script), fuse=True) as chain:
            await respond(chain, sink, writer.write, silence=1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.sleep(10)
        assert len(sent) == 1
        reads.set()
        await trio.sleep(2.5)
        late.set()
    check_events(sent)
    assert [event["type"] for event in sent].count("keepalive") == 2


async def test_what_was_only_prepared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MOST_KEPT", 3_000)
    async with served() as here, spoken(here) as socket:
        ids: list[str] = []
        for _ in range(4):
            await say(socket, [user("x" * 1_000)], generate=False)
            ids.append(check_events(await heard(socket))["id"])
        await say(socket, "Hi", previous_response_id=ids[0])
        (error,) = await heard(socket)
        assert error["error"]["code"] == "previous_response_not_found"
        await say(socket, "Hi", previous_response_id=ids[-1])
        check_events(await heard(socket))


async def test_strictness_and_the_output_mode_are_asked_for_at_the_handshake() -> None:
    backend = ScriptedBackend((call("a"), TurnEnd()))
    async with served(backend) as here:
        async with spoken(here, **{"x-proxy-strict": "1"}) as socket:
            await say(socket, "Hi", temperature=1)
            (error,) = await heard(socket)
            assert error["error"]["param"] == "temperature"
        async with spoken(here, **{"x-proxy-output-mode": "obsidian-xml"}) as socket:
            await say(socket, "Hi", tools=[{"type": "function", "name": "look"}])
            response = check_events(await heard(socket))
            assert "<use_tool>" in response["output"][0]["content"][0]["text"]


async def test_who_leaves_takes_the_turn_along() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        async with spoken(here) as socket:
            await say(socket, "Hi")
            await socket.get_message()
            turn = await backend.until_turn()
        with trio.fail_after(SOON):
            await turn.over.wait()
        (line,) = await here.until_logged()
        assert turn.left == "cancelled"
        assert line["client_left"] is True
        assert here.server.admission.running == 0


HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_keys_are_asked_for_on_a_socket_too() -> None:
    async with served(ScriptedBackend(HELLO), api_keys="alice:secret") as here:
        refused = await here.client.get("/v1/responses", headers=HANDSHAKE)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["x-request-id"]
        async with spoken(here, authorization="Bearer secret") as socket:
            await say(socket, "Hi")
            check_events(await heard(socket))


async def test_strange_pages_get_no_socket() -> None:
    async with served() as here:
        strange = HANDSHAKE | {"origin": "http://example.org"}
        assert (await here.client.get("/v1/responses", headers=strange)).status_code == 403


async def test_a_socket_is_spoken_in_one_place_and_only_if_wanted() -> None:
    async with served() as here:
        other = await here.client.get("/v1/chat/completions", headers=HANDSHAKE)
        assert other.status_code == 426
    async with served(responses_websocket=False) as here:
        refused = await here.client.get("/v1/responses", headers=HANDSHAKE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (426, "upgrade_required")


# trio-websocket's client leaves its own socket open when it is the server that hangs up.
hung_up_on = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@hung_up_on
async def test_an_idle_socket_is_closed_when_the_server_stops() -> None:
    async with trio.open_nursery() as nursery:
        closed = trio.Event()

        async def stay(here: Served, opened: trio.Event) -> None:
            async with spoken(here) as socket:
                opened.set()
                with pytest.raises(ConnectionClosed):
                    await socket.get_message()
                assert socket.closed is not None
                assert socket.closed.code == 1001
                closed.set()

        async with served(shutdown_grace=SOON) as here:
            opened = trio.Event()
            nursery.start_soon(stay, here, opened)
            await opened.wait()
        with trio.fail_after(SOON):
            await closed.wait()


@hung_up_on
async def test_an_answer_that_runs_when_the_server_stops_is_failed_before_the_end() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with trio.open_nursery() as nursery:
        closed = trio.Event()

        async def stay(here: Served) -> None:
            async with spoken(here) as socket:
                await say(socket, "Hi")
                failed = (await heard(socket))[-1]["response"]
                assert "shutting down" in failed["error"]["message"]
                with pytest.raises(ConnectionClosed):
                    await socket.get_message()
                assert socket.closed is not None
                assert socket.closed.code == 1001
                closed.set()

        async with served(backend, shutdown_grace=0.05) as here:
            nursery.start_soon(stay, here)
            await backend.until_turn()
        with trio.fail_after(SOON):
            await closed.wait()
    assert backend.turns[0].left == "cancelled"


@hung_up_on
async def test_a_flood_of_requests_is_hung_up_on() -> None:
    async with served(ScriptedBackend((trio.Event(),))) as here, spoken(here) as socket:
        with suppress(ConnectionClosed), trio.fail_after(SOON):
            for _ in range(40):
                await say(socket, "Hi")
            await socket.get_message()
        assert socket.closed is not None
        assert socket.closed.code == 1008


async def test_reasoning_that_was_not_shown_comes_back_to_the_model_unstored() -> None:
    thought = ReasoningItem("rs_b", ("Hm.",), "sealed-1")
    backend = ScriptedBackend((thought, *HELLO))
    async with served(backend) as here, spoken(here) as socket:
        await say(socket, [user("A")])
        first = check_events(await heard(socket))
        await say(socket, [user("B")], previous_response_id=first["id"])
        check_events(await heard(socket))
    assert "encrypted_content" not in first["output"][0]
    assert backend.asked[-1].items[1]["encrypted_content"] == "sealed-1"


async def test_a_reference_is_remembered_as_what_it_stands_for() -> None:
    backend = ScriptedBackend(HELLO)
    async with served(backend) as here, spoken(here) as socket:
        await say(socket, [user("A")], store=True)
        kept = check_events(await heard(socket))
        reference = {"type": "item_reference", "id": kept["output"][0]["id"]}
        await say(socket, [reference, user("B")])
        second = check_events(await heard(socket))
        await say(socket, [user("C")], previous_response_id=second["id"])
        check_events(await heard(socket))
    words = [item["content"][0]["text"] for item in backend.asked[-1].items]
    assert words == ["Hello, world", "B", "Hello, world", "C"]
