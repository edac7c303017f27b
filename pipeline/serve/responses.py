"""`POST /v1/responses`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen
from quart import Response

from pipeline import assembly
from pipeline.errors import Failure
from pipeline.requests.responses import ResponsesRequest
from pipeline.serve import background
from pipeline.serve.answers import here, json_response
from pipeline.serve.asking import enter, log_answer, requested_output_mode, run, stream, told_about
from pipeline.serve.compaction import compacted, summarising
from pipeline.serve.exchange import Exchange
from pipeline.serve.remembered import Memory
from pipeline.turn import OutputMode, Turn
from sinks.responses import ResponsesOptions
from sinks.responses_answer import ResponsesAnswer
from sinks.responses_json import ResponsesJson
from sinks.responses_sse import ResponsesMessages, ResponsesSse

if TYPE_CHECKING:
    from pipeline.serve.app import Server


@frozen
class Asked:
    """A request of the Responses API, understood: what to run and how to write it."""

    request: ResponsesRequest
    turn: Turn
    options: ResponsesOptions
    memory: Memory

    async def keep(self, answer: ResponsesAnswer) -> None:
        """Store an answer that has ended."""
        await self.memory.keep(self.request, answer.response, answer.withheld)


def add_routes(server: Server) -> None:
    @server.post("/v1/responses")
    async def responses() -> Response:
        exchange = here()
        request = ResponsesRequest.from_json(await server.read_json())
        asked = await understand(
            server, request, server.memory(exchange.caller), requested_output_mode()
        )
        headers = told_about(server, request, server.options.output_mode_for(asked.turn))
        if request.background:
            return await background.begin(server, exchange, asked, headers)
        with await enter(server, exchange, asked.turn) as place:
            if request.stream:
                work = partial(tell, server, exchange, asked)
                make = partial(ResponsesSse, asked.options)
                return await stream(server, exchange, place, make, work, headers)
            body, more = await answer(server, exchange, asked)
        log_answer(server, body)
        return json_response(body, headers=headers | more)


async def understand(
    server: Server, request: ResponsesRequest, memory: Memory, mode: OutputMode | None
) -> Asked:
    """Put together what is asked for; ProxyError names what does not fit."""
    settings = server.options
    request, earlier = await memory.settle(request)
    if request.wants_compaction:
        turn = summarising(server, request, earlier)
    else:
        turn = settings.on_responses(request.turn(settings, earlier=earlier, output_mode=mode))
    options = assembly.responses_options(
        settings, turn, request.echo(), include_encrypted=request.wants_sealed_reasoning
    )
    return Asked(request, evolve(turn, seed=options.response_id), options, memory)


async def tell(
    server: Server, exchange: Exchange, asked: Asked, sink: ResponsesSse | ResponsesMessages
) -> Failure | None:
    """Write an answer as a stream of events. Its end is sent once it is stored."""
    exchange.before_send = partial(_keep_at_end, exchange, asked, sink.answer)
    if asked.request.wants_compaction:
        short = await compacted(server, exchange, asked.turn)
        for usage in short.usage:
            sink.answer.count(usage)
        await sink.tell([short.item])
        return None
    return await run(server, exchange, sink, asked.turn)


async def _keep_at_end(exchange: Exchange, asked: Asked, answer: ResponsesAnswer) -> None:
    if answer.ended:
        exchange.before_send = None
        await asked.keep(answer)


async def answer(
    server: Server, exchange: Exchange, asked: Asked
) -> tuple[dict[str, Any], dict[str, str]]:
    """Make a whole answer, and remember it: the response, and headers that tell of its calls."""
    sink = ResponsesJson(asked.options)
    exchange.answer = sink.answer
    if asked.request.wants_compaction:
        short = await compacted(server, exchange, asked.turn)
        for usage in short.usage:
            sink.answer.count(usage)
        sink.answer.whole([short.item])
        result = sink.result()
    else:
        result = await run(server, exchange, sink, asked.turn)
    await asked.keep(sink.answer)
    return result.body, result.headers
