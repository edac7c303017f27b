"""`POST /v1/responses/compact`, and the compaction that an ordinary request may ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.events import Failed, TextDelta, Usage
from pipeline.loose_json import Json
from pipeline.requests.responses import CompactRequest, ResponsesRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.asking import enter, log_answer, told_about
from pipeline.serve.exchange import Exchange
from pipeline.turn import Turn
from sinks.collect import Collect
from sinks.responses import ResponsesOptions, unique_id
from sinks.responses_answer import ResponsesAnswer

if TYPE_CHECKING:
    from pipeline.serve.app import Server

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


def add_routes(server: Server) -> None:
    @server.post("/v1/responses/compact")
    async def compact() -> Response:
        exchange = here()
        request = CompactRequest.from_json(await server.read_json())
        headers = told_about(server, request, server.options.output_mode)
        request, earlier = await server.memory(exchange.caller).settle(request)
        turn = summarising(server, request, earlier)
        with await enter(server, exchange, turn):
            short = await compacted(server, exchange, turn)
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
    asked = {"type": "message", "role": "user", "content": content}
    return evolve(
        turn,
        items=(*turn.items, asked),
        tools=(),
        tool_choice="none",
        output_schema=None,
        output_mode="auto",  # whatever the summary quotes, it is no call
    )


async def compacted(server: Server, exchange: Exchange, turn: Turn) -> Compacted:
    """Let the model sum up, and seal what it said. ProxyError if it said nothing."""
    (source,) = server.sources(exchange, turn, 1)
    ledger = exchange.ledgers[0]
    events = await server.recipe.run(source, Collect(), turn, ledger=ledger, fuse=True)
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
    content = server.sealed.close(summary, turn.items[:-1], exchange.caller)
    item = {"type": "compaction", "id": unique_id("cmp"), "encrypted_content": content}
    return Compacted(item, [event for event in events if isinstance(event, Usage)])
