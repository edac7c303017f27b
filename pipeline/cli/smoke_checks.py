"""What a deployed server must do, asked of it over HTTP as a client would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import httpx
import msgspec
from attrs import frozen

from pipeline.cli.terminal import frames

LOOKUP: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "localSearch",
        "description": "Searches the user's notes.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
BLOCK: Final = "<use_tool>\n<name>localSearch</name>\n<query>smoke</query>\n</use_tool>"
CALL_IT: Final = "Call the tool localSearch with the query smoke. Say nothing else."
WRITE_IT: Final = (
    "This is a test called USETOOL : do not call a tool. Write these four lines as plain text, "
    f"exactly as they stand, and nothing else:\n{BLOCK}"
)
TALK: Final = "This is a test called LONG : count from one to two hundred in words."


class WrongError(Exception):
    """The server did something else than it must."""


class UndecidedError(Exception):
    """The model did not play along, so nothing was learnt of the server."""


@frozen
class Answer:
    """What a client understands of an answer, however it came."""

    text: str
    calls: list[dict[str, Any]]
    finish: str | None


@frozen
class Target:
    """The server under test."""

    client: httpx.AsyncClient
    url: str
    model: str

    async def post(self, body: object, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.client.post(f"{self.url}/v1/chat/completions", content=content, **options)

    def request(self, said: str, *, tools: bool = False, stream: bool = False) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "stream": stream,
            "messages": [{"role": "user", "content": said}],
        }
        return request | ({"tools": [LOOKUP]} if tools else {})

    async def ask(self, request: dict[str, Any]) -> Answer:
        """Send a request and read its whole answer, streamed or not."""
        response = await self.post(request)
        if response.status_code != 200:
            raise WrongError(f"status {response.status_code}: {response.text[:200]}")
        if request["stream"]:
            return read_stream(response.content)
        choice = response.json()["choices"][0]
        message = choice["message"]
        return Answer(
            message["content"] or "", message.get("tool_calls", []), choice["finish_reason"]
        )


def read_stream(data: bytes) -> Answer:
    """A stream as its client folds it; WrongError where it is out of order."""
    text, calls, finishes = "", list[dict[str, Any]](), list[str]()
    seen = list(frames(data))
    if [kind for kind, _ in seen if kind == "done"] != ["done"] or seen[-1][0] != "done":
        raise WrongError("the stream does not end with one [DONE]")
    for kind, value in seen:
        if kind != "data":
            continue
        if "error" in value:
            raise WrongError(f"the stream failed: {value['error']['message']}")
        for choice in value["choices"]:
            if finishes:
                raise WrongError("something came after the finish")
            delta = choice["delta"]
            text += delta.get("content") or ""
            calls += delta.get("tool_calls", [])
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    if len(finishes) != 1:
        raise WrongError(f"{len(finishes)} finish reasons came, and one must")
    return Answer(text, calls, finishes[0])


def must(truth: object, otherwise: str) -> None:
    if not truth:
        raise WrongError(otherwise)


# -- the checks ------------------------------------------------------------------------------------

Check: TypeAlias = Callable[[Target], Awaitable[str]]


async def models(target: Target) -> str:
    """lists models"""
    response = await target.client.get(f"{target.url}/v1/models")
    must(response.status_code == 200, f"status {response.status_code}")
    names = [model["id"] for model in response.json()["data"]]
    must(names, "no model is listed")
    return f"{len(names)} models"


def text(stream: bool) -> Check:
    async def check(target: Target) -> str:
        answer = await target.ask(target.request("Say hello.", stream=stream))
        must(answer.text, "there is no text")
        must(answer.finish == "stop", f"finish_reason is {answer.finish}")
        return f"{len(answer.text)} characters"

    return check


def call(stream: bool) -> Check:
    async def check(target: Target) -> str:
        answer = await target.ask(target.request(CALL_IT, tools=True, stream=stream))
        return check_call(answer)

    return check


def written_call(stream: bool) -> Check:
    async def check(target: Target) -> str:
        answer = await target.ask(target.request(WRITE_IT, tools=True, stream=stream))
        must("<use_tool>" not in answer.text, "the block reached the client as text")
        if not answer.calls:
            raise UndecidedError("the model wrote no block")
        return check_call(answer)

    return check


def check_call(answer: Answer) -> str:
    must(len(answer.calls) == 1, f"{len(answer.calls)} calls came, and one must")
    must(answer.finish == "tool_calls", f"finish_reason is {answer.finish}")
    (made,) = answer.calls
    function = made["function"]
    must(made["id"] and made["type"] == "function", "the call has no id or type")
    must(function["name"] == "localSearch", f"the call is of {function['name']}")
    arguments = msgspec.json.decode(function["arguments"])
    must(isinstance(arguments, dict), "the arguments are no object")
    return f"{function['name']} {function['arguments'][:40]}"


async def tool_loop(target: Target) -> str:
    """takes a tool's output and goes on to the answer"""
    request = target.request(CALL_IT, tools=True)
    answer = await target.ask(request)
    check_call(answer)
    output = {"role": "tool", "tool_call_id": answer.calls[0]["id"], "content": "three notes"}
    said = {"role": "assistant", "content": answer.text or None, "tool_calls": answer.calls}
    final = await target.ask(request | {"messages": [*request["messages"], said, output]})
    must(final.text or final.calls, "there is no answer")
    return f"{len(final.text)} characters"


async def abort(target: Target) -> str:
    """lets a client leave in the middle, and serves the next"""
    request = target.request(TALK, stream=True)
    url = f"{target.url}/v1/chat/completions"
    async with target.client.stream("POST", url, json=request) as response:
        must(response.status_code == 200, f"status {response.status_code}")
        chunks = response.aiter_raw()
        await anext(chunks)
        await response.aclose()
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in chunks:  # a closed response lets all of httpx's generators end
                pass
    await text(stream=True)(target)
    return "left after the first bytes"


def error(body: object, status: int, param: str | None = None) -> Check:
    async def check(target: Target) -> str:
        response = await target.post(body)
        return check_error(response, status, param)

    return check


def check_error(response: httpx.Response, status: int, param: str | None = None) -> str:
    must(response.status_code == status, f"status {response.status_code}, and not {status}")
    told = response.json()["error"]
    must(told["message"] and told["type"], "the error has no message or type")
    must(told["param"] == param, f"param is {told['param']}, and not {param}")
    must(response.headers.get("x-request-id"), "there is no x-request-id")
    return str(told["message"])[:60]


async def unknown_route(target: Target) -> str:
    """answers an unknown route with a JSON error"""
    return check_error(await target.client.get(f"{target.url}/v1/nothing"), 404)


async def wrong_key(target: Target) -> str:
    """refuses a wrong key"""
    if "authorization" not in target.client.headers:
        raise UndecidedError("no --key was given")
    wrong = {"authorization": "Bearer wrong"}
    return check_error(await target.client.get(f"{target.url}/v1/models", headers=wrong), 401)


CHECKS: Final[dict[str, Check]] = {
    "models are listed": models,
    "text": text(stream=False),
    "text, streamed": text(stream=True),
    "a structured call": call(stream=False),
    "a structured call, streamed": call(stream=True),
    "a written call": written_call(stream=False),
    "a written call, streamed": written_call(stream=True),
    "a call, its output, the answer": tool_loop,
    "a client leaves, the next is served": abort,
    "an error: no JSON": error(b"{", 400),
    "an error: a wrong field": error({"model": "x", "messages": "hello"}, 400, "messages"),
    "an error: an unknown route": unknown_route,
    "an error: a wrong key": wrong_key,
}
