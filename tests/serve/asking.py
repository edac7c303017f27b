"""Requests of the Responses API, and what comes back, in few words."""

from __future__ import annotations

from typing import Any, Final

import httpx
import trio

from pipeline.loose_json import Json
from pipeline.turn import Turn
from tests.serve.scripted import SOON, Served
from tests.support.responses_automaton import check_stream

RESPONSES: Final = "/v1/responses"
LOOK: Final[Json] = {"type": "function", "name": "look"}
KEYS: Final = "ann:sk-anns-own-key-1,bob:sk-bobs-own-key-2"
ANN: Final = {"Authorization": "Bearer sk-anns-own-key-1"}
BOB: Final = {"Authorization": "Bearer sk-bobs-own-key-2"}


def user(words: str) -> Json:
    return {"type": "message", "role": "user", "content": words}


def output(letter: str, words: str) -> Json:
    return {"type": "function_call_output", "call_id": f"call_{letter}", "output": words}


def wish(said: Any = "Hi", /, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5", "input": said, **more}


async def post(here: Served, said: Any = "Hi", /, **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    path = more.pop("path", RESPONSES)
    return await here.client.post(path, json=wish(said, **more), headers=headers)


async def respond(here: Served, said: Any = "Hi", /, **more: Any) -> dict[str, Any]:
    """The response to a request that is taken, streamed or not."""
    answer = await post(here, said, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = check_stream(answer.content) if more.get("stream") else answer.json()
    return found


def refused(answer: httpx.Response, status: int) -> tuple[str | None, str | None]:
    """The code and the parameter of a refusal."""
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return error["code"], error["param"]


async def look_up(here: Served, response_id: str, **headers: str) -> httpx.Response:
    return await here.client.get(f"{RESPONSES}/{response_id}", headers=headers)


async def polled(here: Served, response_id: str, *until: str) -> dict[str, Any]:
    """A response, once it has one of some states."""
    with trio.fail_after(SOON):
        while True:
            found: dict[str, Any] = (await look_up(here, response_id)).json()
            if found["status"] in until:
                return found


def said(turn: Turn) -> list[str]:
    """What a turn sends to the backend, item by item."""
    return [_told(item) for item in turn.items]


def _told(item: Json) -> str:
    match item["type"]:
        case "message":
            content = item["content"]
            words = content if isinstance(content, str) else content[0]["text"]
            return f"{item['role']}: {words}"
        case "function_call":
            return f"call {item['call_id']}"
        case "function_call_output":
            return f"output {item['call_id']}: {item['output']}"
        case "reasoning":
            return f"reasoning {item['encrypted_content']}"
        case kind:
            return str(kind)


def text(response: Json) -> str:
    """The words of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])
