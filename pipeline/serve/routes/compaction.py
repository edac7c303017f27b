"""`POST /v1/responses/compact`, and the compaction that an ordinary request may ask for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from attrs import evolve, frozen
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, Failed, TextDelta, Usage
from pipeline.loose_json import Json
from pipeline.requests.responses import CompactRequest, ResponsesRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.memory.sealed import Sealed
from pipeline.serve.respond import admit, answer_headers, log_answer, run
from pipeline.serve.server import Server
from pipeline.turn import Turn
from sinks.collect import Collect
from sinks.responses import ResponsesOptions, unique_id
from sinks.responses.answer import ResponsesAnswer

ASK_FOR_SUMMARY: Final = """\
Write a summary of this whole conversation for somebody who has to go on with it and cannot read it.
Tell what the user wants, word for word where the words matter; what was done and found out, with
every name, path, number and identifier that may be needed again; what was decided and why; what is
still to be done, and what was being done just now. Call no tool. Write the summary and nothing
else."""


@frozen
class Compacted:
    """A conversation in short: the item that stands for it, and what the summary cost."""

    item: dict[str, Any]
    usage: Sequence[Usage]


class ItemsSink(Protocol):
    """A sink of the Responses API that can write items that are there at once."""

    @property
    def answer(self) -> ResponsesAnswer: ...
    @property
    def finished(self) -> bool: ...
    def whole(self, items: Iterable[dict[str, Any]]) -> bytes: ...
    def keepalive(self) -> bytes: ...
    def fail(self, failure: Failure) -> bytes: ...
    def result(self) -> Any: ...


def add_routes(server: Server) -> None:
    @server.post("/v1/responses/compact")
    async def compact() -> Response:
        exchange = here()
        request = CompactRequest.from_json(await server.read_json())
        headers = answer_headers(server, request, server.options.output_mode)
        request, earlier = await server.memory(exchange.caller).resolve(request)
        turn = summarising(server, request, earlier)
        await admit(server, exchange, turn)
        events = await run(server, exchange, Collect(), turn)
        short = compacted(server.sealed, turn, exchange.caller, events)
        answer = exchange.answer = ResponsesAnswer(ResponsesOptions())
        for usage in short.usage:
            answer.count(usage)
        answer.whole([short.item])
        body = {
            "id": unique_id("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": answer.output,
            "usage": answer.usage(),
        }
        log_answer(server, body)
        return json_response(body, headers=headers)


def summarising(server: Server, request: ResponsesRequest, earlier: Sequence[Json]) -> Turn:
    """The turn in which the model sums up what a request holds."""
    turn = request.turn(server.options, earlier=earlier)
    content = [{"type": "input_text", "text": ASK_FOR_SUMMARY}]
    request_item = {"type": "message", "role": "user", "content": content}
    return evolve(
        turn,
        items=(*turn.items, request_item),
        tools=(),
        tool_choice="none",
        output_schema=None,
        output_mode="auto",  # whatever the summary quotes, it is no call
    )


def compacted(sealed: Sealed, turn: Turn, caller: str, events: Sequence[Event]) -> Compacted:
    """Seal what the model said in a turn. ProxyError if it failed or said nothing."""
    for event in events:
        if isinstance(event, Failed):
            raise ProxyError(event.error)
    summary = "".join(event.text for event in events if isinstance(event, TextDelta)).strip()
    if not summary:
        raise ProxyError(
            Failure(
                "the model wrote no summary of the conversation; send the request again",
                status=502,
                type="server_error",
                code="upstream_error",
            )
        )
    content = sealed.close(summary, turn.items[:-1], caller)
    item = {"type": "compaction", "id": unique_id("cmp"), "encrypted_content": content}
    return Compacted(item, [event for event in events if isinstance(event, Usage)])


class Compaction:
    """A sink that makes one compaction item of a turn, and has another sink write it."""

    def __init__(self, sink: ItemsSink, sealed: Sealed, turn: Turn, caller: str) -> None:
        self._sink = sink
        self._compact = partial(compacted, sealed, turn, caller)
        self._said = Collect()
        self.answer = sink.answer
        self.keepalive = sink.keepalive
        self.fail = sink.fail
        self.result = sink.result

    @property
    def finished(self) -> bool:
        return self._sink.finished

    def feed(self, burst: Burst) -> bytes:
        self._said.feed(burst)
        if not self._said.finished:
            return b""
        short = self._compact(self._said.result())
        for usage in short.usage:
            self.answer.count(usage)
        return self._sink.whole([short.item])
