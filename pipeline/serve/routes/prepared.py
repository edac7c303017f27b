"""A request of the Responses API, put together: what to run, how to write it, what to store."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from pipeline import config
from pipeline.requests.responses import ResponsesRequest
from pipeline.serve.memory.remembered import Memory
from pipeline.serve.observe.exchange import Exchange
from pipeline.serve.respond import run
from pipeline.serve.routes.compaction import Compaction, summarising
from pipeline.serve.server import Server
from pipeline.turn import OutputMode, Turn
from sinks.responses import ResponsesJson, ResponsesMessages, ResponsesOptions, ResponsesSse
from sinks.responses.answer import ResponsesAnswer

ResponsesSink = ResponsesJson | ResponsesSse | ResponsesMessages


@frozen
class Prepared:
    """A request of the Responses API, ready to run."""

    request: ResponsesRequest
    turn: Turn
    options: ResponsesOptions
    memory: Memory

    async def store(self, answer: ResponsesAnswer) -> None:
        """Store an answer that has ended."""
        await self.memory.keep(self.request, answer.response, answer.withheld)


async def prepare(
    server: Server, request: ResponsesRequest, memory: Memory, mode: OutputMode | None
) -> Prepared:
    """Put together what is asked for. ProxyError names what does not fit."""
    settings = server.options
    request, earlier = await memory.resolve(request)
    if request.wants_compaction:
        turn = summarising(server, request, earlier)
    else:
        turn = settings.on_responses(request.turn(settings, earlier=earlier, output_mode=mode))
    options = config.responses_options(
        settings, turn, request.echo(), include_encrypted=request.wants_sealed_reasoning
    )
    return Prepared(request, evolve(turn, seed=options.response_id), options, memory)


def compacting(server: Server, exchange: Exchange, prepared: Prepared, sink: Any) -> Any:
    """The sink, or one that makes a compaction of what the model says, if that is asked for."""
    if not prepared.request.wants_compaction:
        return sink
    return Compaction(sink, server.sealed, prepared.turn, exchange.caller)


async def whole_answer(
    server: Server, exchange: Exchange, prepared: Prepared
) -> tuple[dict[str, Any], dict[str, str]]:
    """Make a whole answer, and store it: the response, and headers that tell of its calls."""
    sink = ResponsesJson(prepared.options)
    exchange.answer = sink.answer
    result = await run(
        server, exchange, compacting(server, exchange, prepared, sink), prepared.turn
    )
    await prepared.store(sink.answer)
    return result.body, result.headers
