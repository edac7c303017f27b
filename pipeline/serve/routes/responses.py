"""`POST /v1/responses`."""

from __future__ import annotations

from functools import partial

from quart import Response

from pipeline.requests.responses import ResponsesRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.respond import (
    admit,
    answer_headers,
    log_answer,
    requested_output_mode,
    stream,
)
from pipeline.serve.routes import background
from pipeline.serve.routes.prepared import compacting, prepare, whole_answer
from pipeline.serve.server import Server
from sinks.responses import ResponsesSse


def add_routes(server: Server) -> None:
    @server.post("/v1/responses")
    async def responses() -> Response:
        exchange = here()
        request = ResponsesRequest.from_json(await server.read_json())
        memory = server.memory(exchange.caller)
        prepared = await prepare(server, request, memory, requested_output_mode())
        turn = prepared.turn
        headers = answer_headers(server, request, server.options.output_mode_for(turn))
        if request.background:
            return await background.begin(server, exchange, prepared, headers)
        await admit(server, exchange, turn)
        if request.stream:
            sse = ResponsesSse(prepared.options)
            sink = compacting(server, exchange, prepared, sse)
            store = partial(prepared.store, sse.answer)
            return await stream(server, exchange, sink, turn, headers, before_end=store)
        body, more = await whole_answer(server, exchange, prepared)
        log_answer(server, body)
        return json_response(body, headers=headers | more)
