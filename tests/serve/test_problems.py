"""What a backend sends and cannot be used, as the operator of a server reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.serve.backends import CodexBackend, ResponsesBackend
from sources.app_server.process.pool import Pool
from sources.app_server.process.supervisor import AppServer
from sources.app_server.transport.transport import Transport
from sources.app_server.turn.kept import KeepOptions
from sources.responses_api import open_client
from sources.responses_request import ResponsesApi
from tests.serve.scripted import Served, served, tools
from tests.support.app_server_wire import Wire
from tests.support.raw_http import COMPLETED, backend, delta, http, says, sse

FAMILY = "proxy_backend_problems_total"
THREAD = {"threadId": "T", "turnId": "0"}


def counted(here: Served, kind: str, name: str) -> float:
    return here.metric(f'{FAMILY}{{kind="{kind}",name="{name}"}}')


async def until_told(here: Served, number: int) -> set[tuple[str, str]]:
    event = "problem with a message of the backend"
    await here.until(lambda: len(here.lines(event)) >= number)
    return {(line["kind"], line["name"]) for line in here.lines(event)}


async def test_problems_of_an_api_over_http_are_counted_and_logged() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": 5}
    body = sse("danced") + b"data: {\n\n" + sse("output_item.done", item=call) + delta("Hi")
    async with backend(says(http(body + COMPLETED))) as url, open_client() as client:
        api = ResponsesBackend(ResponsesApi(url), client, Settings())
        async with served(api) as here:
            answer = await here.ask(tools=tools("look"))
            assert answer.json()["choices"][0]["message"]["content"] == "Hi"
            assert answer.headers["x-codex-tool-call-truncated"] == "true"
            (line,) = await here.until_logged()
            assert line["tool_call_truncated"] is True
            assert counted(here, "unknown_event", "response.danced") == 1
            assert counted(here, "unreadable_item", "line") == 1
            assert counted(here, "unreadable_call", "function_call") == 1
            assert await until_told(here, 3) == {
                ("unknown_event", "response.danced"),
                ("unreadable_item", "line"),
                ("unreadable_call", "function_call"),
            }


def app_server(asked: dict[str, Any]) -> list[Json]:
    """What a small app-server answers: a turn with a call that has no name."""
    if "id" not in asked:
        return []
    answer: dict[str, Any] = {"id": asked["id"], "result": {}}
    match asked["method"]:
        case "thread/start" if "model" in asked["params"]:
            answer["result"] = {"thread": {"id": "T"}}
        case "capabilities/probe" | "thread/start":
            known = "`turn/start` `thread/inject_items` `thread/delete`"
            return [{"id": asked["id"], "error": {"code": -32600, "message": known}}]
        case "thread/delete":
            return [{"id": asked["id"], "error": {"code": -32603, "message": "no"}}]
        case "turn/start":
            answer["result"] = {"turn": {"id": "0"}}
            item = {"type": "function_call", "call_id": "c", "arguments": "{}"}
            told = [
                ("turn/started", {"threadId": "T", "turn": {"id": "0"}}),
                ("thread/danced", THREAD),
                ("rawResponseItem/completed", {**THREAD, "item": item}),
                ("item/agentMessage/delta", {**THREAD, "itemId": "m", "delta": "Hi"}),
                ("turn/completed", {"threadId": "T", "turn": {"id": "0", "status": "completed"}}),
            ]
            return [answer, *({"method": name, "params": params} for name, params in told)]
        case _:
            pass
    return [answer]


@pytest.mark.parametrize("stream", [True, False])
async def test_problems_of_an_app_server_are_counted_and_logged(
    tmp_path: Path, stream: bool
) -> None:
    async def connect(nursery: trio.Nursery) -> Transport:
        await trio.lowlevel.checkpoint()
        wire = Wire()
        wire.on_send = app_server
        return wire

    server = AppServer("small", connect, str(tmp_path))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        pool = Pool([server], keep=KeepOptions(most=0))
        async with served(CodexBackend(pool, Settings(), "small", "")) as here:
            answer = await here.ask(tools=tools("look", "read"), stream=stream)
            assert "Hi" in answer.text
            (line,) = await here.until_logged()
            assert line["tool_call_truncated"] is True
            assert counted(here, "unknown_event", "thread/danced") == 1
            assert counted(here, "nameless_call", "function_call") == 1
            assert await until_told(here, 3) == {
                ("unknown_event", "thread/danced"),
                ("nameless_call", "function_call"),
                ("missing_response_end", "turn"),
            }
            refused = "the backend answered a request with an error"
            await here.until(lambda: here.lines(refused))
            (told,) = here.lines(refused)
            assert (told["method"], told["code"]) == ("thread/delete", "-32603")
        nursery.cancel_scope.cancel()
