"""A turn of the fake app-server: the demo script, in the messages of Codex 0.166."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from math import inf
from typing import Any, Final, TypeAlias

import msgspec
from attrs import Factory, define, frozen

from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.app_server.protocol.prompts import item_text
from sources.demo.script import Says, answer

encode: Final = msgspec.json.Encoder().encode
USAGE: Final = {
    "totalTokens": 153,
    "inputTokens": 120,
    "cachedInputTokens": 64,
    "outputTokens": 33,
    "reasoningOutputTokens": 9,
}
DELTA: Final = "item/agentMessage/delta"
IN_ONE_WRITE: Final = 16
"""The number of deltas that fit into one write to a pipe."""


@frozen
class Wait:
    """Wait until the client has answered this request."""

    id: int | str


@frozen
class Write:
    """Raw bytes, each piece in its own write."""

    pieces: tuple[bytes, ...]


@frozen
class Pause:
    """Wait for some seconds."""

    seconds: float


@frozen
class Act:
    """An action after everything before it has been written."""

    do: Callable[[], None]


Step: TypeAlias = Json | Write | Pause | Wait | Act
"""One step of a turn; an object is a message."""


@define(slots=False)
class FakeTurn:
    """One turn of one thread. It can be stopped between any two steps."""

    thread: str
    turn: str
    history: list[Json] = Factory(list[Json])
    inputs: list[Json] = Factory(list[Json])
    tools: list[Json] = Factory(list[Json])
    numbers: Iterator[int] = Factory(count)
    """The ids of the backend's own requests."""
    answers: dict[int | str, Json] = Factory(dict[int | str, Json])
    over: str = ""
    """How the turn ended: empty while it runs."""
    _running: dict[str, Json] = Factory(dict[str, Json])

    def __attrs_post_init__(self) -> None:
        self._said_now = [_user(part) for part in self.inputs]
        self._items = [*self.history, *self._said_now]
        self._tools = [{**tool, "parameters": tool.get("inputSchema")} for tool in self.tools]

    @property
    def said(self) -> str:
        """The text of the last user message."""
        said = [item_text(item) for item in self._items if item.get("role") == "user"]
        return said[-1] if said else ""

    # -- messages --------------------------------------------------------------------------------

    def notify(self, method: str, **params: Any) -> Json:
        """A notification of this turn."""
        named = {"threadId": self.thread, "turnId": self.turn, **params}
        return {"method": method, "params": named, "emittedAtMs": int(time.time() * 1000)}

    def ask(self, method: str, **params: Any) -> Json:
        """A request to the client, with the backend's own id; approvals have string ids."""
        number: int | str = next(self.numbers)
        if method != "item/tool/call":
            number = f"ask-{number}"
        named = {"threadId": self.thread, "turnId": self.turn, **params}
        return {"method": method, "id": number, "params": named}

    def delta(self, words: str) -> Json:
        return self.notify(DELTA, itemId="msg_1", delta=words)

    def raw(self, item: Json) -> Json:
        return self.notify("rawResponseItem/completed", item=item)

    def state(self, status: str, error: Json | None = None) -> dict[str, Any]:
        return {"id": self.turn, "items": [], "status": status, "error": error}

    # -- playing ---------------------------------------------------------------------------------

    def steps(self, deltas: int | None = None) -> Iterator[Step]:
        """The whole turn; with `deltas`, so many deltas at full speed instead of the script."""
        yield self.notify("turn/started", turn=self.state("inProgress"))
        for item in self._said_now:
            yield self.raw(item)
            yield self.notify("item/started", item={"type": "userMessage"})
            yield self.notify("item/completed", item={"type": "userMessage"})
        if deltas is not None:
            yield from self._flood(deltas)
            yield from self.response_end()
        else:
            yield from self._rounds()
        if not self.over:
            yield self.end("completed")

    def end(self, status: str, error: Json | None = None) -> Json:
        self.over = status
        return self.notify("turn/completed", turn=self.state(status, error))

    def interrupted(self) -> Iterator[Step]:
        """The messages after an interrupt: running calls fail first."""
        for call in self._running.values():
            yield self._tool_item("completed", call, status="failed", success=False)
            yield self.raw(_output(call, "dynamic tool call was cancelled"))
        aborted = [{"type": "input_text", "text": "<turn_aborted>\n</turn_aborted>"}]
        yield self.raw({"type": "message", "role": "user", "content": aborted})

    def _rounds(self) -> Iterator[Step]:
        """Answer, run the called tools, and answer again with their results."""
        while True:
            says = answer({"input": self._items, "tools": self._tools})
            if says.status != 200:
                yield from self._failed(*_refusal(says))
                return
            if says.first_try is not None:
                yield from islice(self._item(says.items[0], says.piece), 2)
                error = {"message": "Reconnecting... 1/2", "codexErrorInfo": "other"}
                yield self.notify("error", error=error, willRetry=True)
            calls: list[Json] = []
            for item in says.items:
                yield from self._item(item, says.piece)
                if item["type"] == "function_call":
                    calls.append(item)
            if says.ending != "completed":
                yield from self._broken_off(says.ending)
                return
            yield from self.response_end()
            if not calls:
                return
            yield from self._tools_run(calls)

    def _item(self, item: Json, piece: int) -> Iterator[Step]:
        if item["type"] == "pause":
            yield Pause(item["seconds"])
            return
        identity = item["id"]
        if item["type"] == "function_call":  # sent when it is complete, announced or not
            yield Pause(item.get("seconds", 0.0))
            yield self.raw({key: value for key, value in item.items() if key != "seconds"})
            return
        words = text_of(item["text"])
        pieces = [words[start : start + piece] for start in range(0, len(words), piece)]
        if item["type"] == "reasoning":
            yield self.notify("item/started", item={"type": "reasoning", "id": identity})
            for part in pieces:
                method = "item/reasoning/summaryTextDelta"
                yield self.notify(method, itemId=identity, delta=part, summaryIndex=0)
            done = {"type": "reasoning", "id": identity, "summary": [words]}
            yield self.notify("item/completed", item=done)
            summary = [{"type": "summary_text", "text": words}]
            sealed = item["encrypted_content"]
            yield self.raw({**done, "summary": summary, "encrypted_content": sealed})
            return
        yield self.notify("item/started", item={"type": "agentMessage", "id": identity, "text": ""})
        for part in pieces:
            yield self.delta(part)
        yield self.notify(
            "item/completed", item={"type": "agentMessage", "id": identity, "text": words}
        )
        content = [{"type": "output_text", "text": words}]
        message = {"type": "message", "id": identity, "role": "assistant", "content": content}
        yield self.raw(message)

    def _flood(self, count: int) -> Iterator[Step]:
        before, _, after = encode(self.delta("@")).partition(b"@")
        for start in range(0, count, IN_ONE_WRITE):
            numbers = range(start, min(start + IN_ONE_WRITE, count))
            lines = b"".join(b"%b%d %b\n" % (before, number, after) for number in numbers)
            yield Write((lines,))

    def response_end(self) -> Iterator[Json]:
        yield self.notify("rawResponse/completed", responseId="resp_1", usage=USAGE)
        both = {"total": USAGE, "last": USAGE}
        yield self.notify("thread/tokenUsage/updated", tokenUsage=both)

    # -- tools -----------------------------------------------------------------------------------

    def _tools_run(self, calls: list[Json]) -> Iterator[Step]:
        """Ask the client to run all calls, wait, and add the outputs to the history."""
        self._items += calls
        declared = {text_of(tool.get("name")) for tool in self._tools}
        waits: list[tuple[Json, Wait]] = []
        for call in calls:
            if call["name"] not in declared:
                yield from self._result(call, f"unsupported call: {call['name']}")
                continue
            self._running[call["call_id"]] = call
            yield self._tool_item("started", call, status="inProgress")
            params = {"callId": call["call_id"], "tool": call["name"]}
            request = self.ask("item/tool/call", **params, arguments=_parsed(call))
            yield request
            waits.append((call, Wait(request["id"])))
        for call, wait in waits:
            yield wait
            del self._running[call["call_id"]]
            yield self._tool_item("completed", call, status="completed", success=True)
            result = as_json(self.answers[wait.id].get("result"))
            texts = [text_of(as_json(p).get("text")) for p in as_list(result.get("contentItems"))]
            yield from self._result(call, "".join(texts))

    def _result(self, call: Json, words: str) -> Iterator[Step]:
        self._items.append(_output(call, words))
        yield self.raw(self._items[-1])

    def _tool_item(self, what: str, call: Json, **state: Any) -> Json:
        item = {"type": "dynamicToolCall", "id": call["call_id"], "tool": call["name"], **state}
        return self.notify(f"item/{what}", item={**item, "arguments": _parsed(call)})

    # -- bad ends --------------------------------------------------------------------------------

    def _broken_off(self, ending: str) -> Iterator[Step]:
        if ending == "hang":
            yield Pause(inf)
        elif ending == "cut":
            yield from self._failed("stream disconnected before completion", "other")
        else:
            yield from self._failed(f"Incomplete response returned, reason: {ending}", "other")

    def _failed(self, message: str, info: object) -> Iterator[Step]:
        error = {"message": message, "codexErrorInfo": info}
        yield self.notify("error", error=error, willRetry=False)
        yield self.end("failed", error)


def _user(part: Json) -> Json:
    content = [{"type": "input_text", "text": text_of(part.get("text"))}]
    return {"type": "message", "role": "user", "content": content}


def _parsed(call: Json) -> Any:
    return msgspec.json.decode(call["arguments"])


def _output(call: Json, words: str) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": words}


def _refusal(says: Says) -> tuple[str, object]:
    """The error of Codex for a rejected upstream request."""
    match says.status:
        case 401:
            info = {"httpConnectionFailed": {"httpStatusCode": 401}}
            return "unexpected status 401 Unauthorized", info
        case 429:
            return text_of(as_json(says.body.get("error")).get("message")), "usageLimitExceeded"
        case 400:
            return encode(says.body).decode(), "other"
        case _:
            return "We're currently experiencing high demand", "internalServerError"
