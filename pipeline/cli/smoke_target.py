"""A client of the server under test, for both APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

import httpx
import msgspec
from attrs import evolve, frozen

from pipeline.loose_json import Json
from pipeline.terminal import frames

Body: TypeAlias = dict[str, Any]
TOOLS: Final[Mapping[str, str]] = {"localSearch": "query", "readNote": "path"}
"""The tools that are offered, with the name of each one's string parameter."""
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")


class WrongError(Exception):
    """The server did not do what it must."""


class UndecidedError(Exception):
    """The model did not do what the check needs, so it has no result."""


def must(truth: object, otherwise: str) -> None:
    if not truth:
        raise WrongError(otherwise)


@frozen
class Answer:
    """An answer, from either API, streamed or not."""

    text: str
    calls: list[Body]
    """In the chat's format for both APIs."""
    finish: str | None
    items: tuple[Body, ...] = ()
    """The output items of the Responses API; empty for a chat."""
    limited: bool = False
    """Whether the server is configured to forward fewer calls than the model makes."""


class Api(Protocol):
    """One API: makes requests and reads answers; WrongError if an answer is not valid."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    def request(self, text: str, *, tools: bool) -> Body:
        """A request with one user message, without the model."""
        ...

    def with_outputs(self, request: Body, answer: Answer, output: str) -> Body:
        """The follow-up request with the outputs of all calls of an answer."""
        ...

    def read(self, body: Any) -> Answer: ...

    def read_stream(self, data: bytes) -> Answer: ...


@frozen
class Target:
    """The server under test."""

    client: httpx.AsyncClient
    url: str
    model: str

    async def post(self, path: str, body: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.client.post(f"{self.url}{path}", content=content)

    async def ask(self, api: Api, request: Body, *, stream: bool = False) -> Answer:
        """Send a request and read its whole answer, streamed or not."""
        response = await self.post(api.path, {"model": self.model, "stream": stream, **request})
        if response.status_code != 200:
            raise WrongError(f"status {response.status_code}: {response.text[:200]}")
        answer = api.read_stream(response.content) if stream else api.read(response.json())
        return evolve(answer, limited=_limited(response))


def _limited(response: httpx.Response) -> bool:
    headers = response.headers
    return (
        headers.get("x-codex-stop-after-tools-mode") == "first"
        or headers.get("x-codex-tool-call-truncated") == "true"
        or '"tool_call_truncated":true' in response.text
    )


def _tool(name: str, argument: str) -> Body:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {"name": name, "description": "For the user's notes.", "parameters": parameters}


def _events(data: bytes) -> list[Body]:
    """The JSON of a stream that ends with one [DONE]."""
    seen = list(frames(data))
    must([kind for kind, _ in seen[-1:]] == ["done"], "the stream does not end with one [DONE]")
    must(sum(kind == "done" for kind, _ in seen) == 1, "the stream does not end with one [DONE]")
    return [value for kind, value in seen if kind == "data"]


# -- chat ------------------------------------------------------------------------------------------


class ChatApi:
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"

    def request(self, text: str, *, tools: bool) -> Body:
        declared = [{"type": "function", "function": _tool(*tool)} for tool in TOOLS.items()]
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, **({"tools": declared} if tools else {})}

    def with_outputs(self, request: Body, answer: Answer, output: str) -> Body:
        message = {"role": "assistant", "content": answer.text or None, "tool_calls": answer.calls}
        outputs = [
            {"role": "tool", "tool_call_id": call["id"], "content": output} for call in answer.calls
        ]
        return {**request, "messages": [*request["messages"], message, *outputs]}

    def read(self, body: Any) -> Answer:
        choice = body["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls", [])
        return Answer(message["content"] or "", calls, choice["finish_reason"])

    def read_stream(self, data: bytes) -> Answer:
        text, calls, finishes = "", list[Body](), list[str]()
        for chunk in _events(data):
            if "error" in chunk:
                raise WrongError(f"the stream failed: {chunk['error']['message']}")
            for choice in chunk["choices"]:
                must(not finishes, "something came after the finish")
                delta = choice["delta"]
                text += delta.get("content") or ""
                calls += delta.get("tool_calls", [])
                finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
        must(len(finishes) == 1, f"{len(finishes)} finish reasons came instead of one")
        numbers = [call.pop("index") for call in calls]
        must(numbers == [*range(len(calls))], f"the calls are numbered {numbers}")
        return Answer(text, calls, finishes[0])


# -- responses -------------------------------------------------------------------------------------


class ResponsesApi:
    """`/v1/responses`, with store: false."""

    name = "responses"
    path = "/v1/responses"

    def request(self, text: str, *, tools: bool) -> Body:
        declared = [{"type": "function", **_tool(*tool)} for tool in TOOLS.items()]
        items = [{"type": "message", "role": "user", "content": text}]
        return {"input": items, "store": False, **({"tools": declared} if tools else {})}

    def with_outputs(self, request: Body, answer: Answer, output: str) -> Body:
        outputs = [
            {"type": "function_call_output", "call_id": call["id"], "output": output}
            for call in answer.calls
        ]
        return {**request, "input": [*request["input"], *answer.items, *outputs]}

    def read(self, body: Any) -> Answer:
        items = body["output"]
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        calls = [_as_chat(item) for item in items if item["type"] == "function_call"]
        finish = "tool_calls" if calls else "stop"
        if body["status"] != "completed":
            finish = body["status"]
        return Answer("".join(part["text"] for part in parts), calls, finish, tuple(items))

    def read_stream(self, data: bytes) -> Answer:
        events = _events(data)
        kinds = [event["type"] for event in events]
        for event in events:
            if event["type"] == "error":
                raise WrongError(f"the stream failed: {event['message']}")
        named = [name.decode() for name in re.findall(rb"^event: (.*)$", data, re.MULTILINE)]
        must(named == kinds, "the name of an event is not its type")
        numbers = [event["sequence_number"] for event in events]
        must(numbers == [*range(len(events))], "the sequence numbers do not count from 0")
        must(kinds[:1] == ["response.created"], "the stream does not begin with response.created")
        ends = [kind for kind in kinds if kind in ENDS]
        must(len(ends) == 1 and kinds[-1] in ENDS, f"{len(ends)} ends came instead of one, last")
        answer = self.read(events[-1]["response"])
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        must([*answer.items] == done, "the last event's output differs from the items before it")
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        must("".join(deltas) == answer.text, "the deltas do not add up to the whole text")
        return answer


def _as_chat(item: Json) -> Body:
    function = {"name": item["name"], "arguments": item["arguments"]}
    must(item["id"] != item["call_id"], "a call has the same id and call_id")
    return {"id": item["call_id"], "type": "function", "function": function}


CHAT: Final[Api] = ChatApi()
RESPONSES: Final[Api] = ResponsesApi()
