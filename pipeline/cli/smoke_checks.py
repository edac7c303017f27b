"""The checks of a deployed server over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import Final, TypeAlias

import httpx
import msgspec

from pipeline.cli.smoke_target import (
    CHAT,
    RESPONSES,
    TOOLS,
    Answer,
    Api,
    Target,
    UndecidedError,
    must,
)
from sources.demo.script import SCENARIOS

# The keywords in capitals make the scripted model do what the text asks of a real one.
BLOCK: Final = "<use_tool>\n<name>localSearch</name>\n<query>smoke</query>\n</use_tool>"
CALL_IT: Final = "Call the tool localSearch with the query smoke. Say nothing else."
WRITE_IT: Final = (
    "This is a test called USETOOL : do not call a tool. Write these four lines as plain text, "
    f"exactly as they stand, and nothing else:\n{BLOCK}"
)
CALL_BOTH: Final = (
    "This is a test called BURST : call both of your tools now, one right after the other, before "
    "you see the output of any of them. Say nothing else."
)
CALL_SLOWLY: Final = (
    "This is a test called SLOWBURST : call both of your tools now, before you see the output of "
    "any of them, and think for two seconds between the calls. Say nothing else."
)
"""Neither names a tool, so a scripted model without this keyword makes no call."""
TALK: Final = "This is a test called LONG : count from one to two hundred in words."
GREET: Final = "This is a test called TEXT : say hello."
GREETING: Final[str] = SCENARIOS["TEXT"].items[0]["text"]

Check: TypeAlias = Callable[[Target], Awaitable[str]]


async def models(target: Target) -> str:
    """lists models"""
    response = await target.client.get(f"{target.url}/v1/models")
    must(response.status_code == 200, f"status {response.status_code}")
    names = [model["id"] for model in response.json()["data"]]
    must(names, "no model is listed")
    return f"{len(names)} models"


# -- answers ---------------------------------------------------------------------------------------


def text(api: Api, stream: bool) -> Check:
    async def check(target: Target) -> str:
        request = api.request("Say hello.", tools=False)
        answer = await target.ask(api, request, stream=stream)
        must(answer.text, "there is no text")
        must(answer.finish == "stop", f"it finished with {answer.finish}")
        return f"{len(answer.text)} characters"

    return check


def call(api: Api, stream: bool) -> Check:
    async def check(target: Target) -> str:
        answer = await target.ask(api, api.request(CALL_IT, tools=True), stream=stream)
        return check_call(answer)

    return check


def written_call(api: Api, stream: bool) -> Check:
    async def check(target: Target) -> str:
        answer = await target.ask(api, api.request(WRITE_IT, tools=True), stream=stream)
        must("<use_tool>" not in answer.text, "the block reached the client as text")
        if not answer.calls:
            raise UndecidedError("the model wrote no block")
        return check_call(answer)

    return check


def check_call(answer: Answer) -> str:
    must(len(answer.calls) == 1, f"{len(answer.calls)} calls came instead of one")
    check_calls(answer)
    function = answer.calls[0]["function"]
    must(function["name"] == "localSearch", f"the call is of {function['name']}")
    return f"{function['name']} {function['arguments'][:40]}"


def check_calls(answer: Answer) -> None:
    must(answer.finish == "tool_calls", f"finish_reason is {answer.finish}, not tool_calls")
    for made in answer.calls:
        function = made["function"]
        must(made["id"] and made["type"] == "function", "a call has no id or type")
        must(function["name"] in TOOLS, f"a call is of {function['name']}, which is not declared")
        arguments = msgspec.json.decode(function["arguments"])
        must(isinstance(arguments, dict), "the arguments are not an object")
    ids = {made["id"] for made in answer.calls}
    must(len(ids) == len(answer.calls), "two calls have the same id")


def several_calls(api: Api, stream: bool, prompt: str = CALL_BOTH) -> Check:
    async def check(target: Target) -> str:
        began = perf_counter()
        answer = await target.ask(api, api.request(prompt, tools=True), stream=stream)
        took = perf_counter() - began
        if answer.calls:
            check_calls(answer)
        if len(answer.calls) < 2:
            # Only with the scripted model is it known that a second call was made.
            known = bool(answer.calls) and not answer.limited and await is_scripted(target)
            must(not known, "the model made several calls, but only one came")
            why = (
                "the server is configured to forward fewer"
                if answer.limited
                else "the model made fewer"
            )
            raise UndecidedError(f"{len(answer.calls)} calls came; {why}")
        return f"{len(answer.calls)} calls in {took:.1f} s"

    return check


async def is_scripted(target: Target) -> bool:
    """Whether the model is the scripted one of `serve --demo`."""
    answer = await target.ask(CHAT, CHAT.request(GREET, tools=False))
    return answer.text == GREETING


def tool_loop(api: Api, stream: bool) -> Check:
    async def check(target: Target) -> str:
        request = api.request(CALL_IT, tools=True)
        answer = await target.ask(api, request, stream=stream)
        check_call(answer)
        follow_up = api.with_outputs(request, answer, "three notes")
        final = await target.ask(api, follow_up, stream=stream)
        must(final.text or final.calls, "there is no answer")
        return f"{len(final.text)} characters"

    return check


async def abort(target: Target) -> str:
    """survives a client that disconnects in the middle"""
    request = {"model": target.model, "stream": True, **CHAT.request(TALK, tools=False)}
    async with target.client.stream("POST", f"{target.url}{CHAT.path}", json=request) as response:
        must(response.status_code == 200, f"status {response.status_code}")
        chunks = response.aiter_raw()
        await anext(chunks)
        await response.aclose()
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in chunks:  # lets httpx's generators end
                pass
    await text(CHAT, stream=True)(target)
    return "disconnected after the first bytes"


# -- errors ----------------------------------------------------------------------------------------


def error(api: Api, body: object, status: int, param: str | None = None) -> Check:
    async def check(target: Target) -> str:
        return check_error(await target.post(api.path, body), status, param)

    return check


def check_error(response: httpx.Response, status: int, param: str | None = None) -> str:
    must(response.status_code == status, f"status {response.status_code}, not {status}")
    failure = response.json()["error"]
    must(failure["message"] and failure["type"], "the error has no message or type")
    must(failure["param"] == param, f"param is {failure['param']}, not {param}")
    must(response.headers.get("x-request-id"), "there is no x-request-id")
    return str(failure["message"])[:60]


async def unknown_route(target: Target) -> str:
    """answers an unknown route with a JSON error"""
    return check_error(await target.client.get(f"{target.url}/v1/nothing"), 404)


async def wrong_key(target: Target) -> str:
    """rejects a wrong key"""
    if "authorization" not in target.client.headers:
        raise UndecidedError("no --key was given")
    wrong = {"authorization": "Bearer wrong"}
    return check_error(await target.client.get(f"{target.url}/v1/models", headers=wrong), 401)


def _answers(api: Api) -> dict[str, Check]:
    checks: dict[str, Callable[[Api, bool], Check]] = {
        "text": text,
        "a structured call": call,
        "a written call": written_call,
        "several calls": several_calls,
        "a call, its output, the answer": tool_loop,
    }
    both = {
        f"{api.name}: {name}{', streamed' if stream else ''}": check(api, stream)
        for name, check in checks.items()
        for stream in (False, True)
    }
    return both | {f"{api.name}: a slow burst, streamed": several_calls(api, True, CALL_SLOWLY)}


CHECKS: Final[dict[str, Check]] = {
    "models are listed": models,
    **_answers(CHAT),
    **_answers(RESPONSES),
    "a client disconnects, the next is served": abort,
    "an error: no JSON": error(CHAT, b"{", 400),
    "an error: a wrong field": error(CHAT, {"model": "x", "messages": "hello"}, 400, "messages"),
    "an error: a wrong input": error(RESPONSES, {"model": "x", "input": 7}, 400, "input"),
    "an error: an unknown route": unknown_route,
    "an error: a wrong key": wrong_key,
}
