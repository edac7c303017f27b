"""`POST /v1/chat/completions`."""

from __future__ import annotations

from attrs import evolve
from quart import Response

from pipeline import config
from pipeline.requests.chat import ChatRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.respond import (
    admit,
    answer_headers,
    log_answer,
    requested_output_mode,
    run,
    stream,
)
from pipeline.serve.server import Server
from sinks.chat import ChatJson, ChatSse


def add_routes(server: Server) -> None:
    @server.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await _answer(server)


async def _answer(server: Server) -> Response:
    exchange = here()
    request = ChatRequest.from_json(
        await server.read_json(), without_effect=server.backend.without_effect
    )
    turn = request.turn(server.options, output_mode=requested_output_mode())
    headers = answer_headers(server, request, server.options.output_mode_for(turn))
    await admit(server, exchange, turn, request.n)
    options = evolve(config.chat_options(server.options, turn), choices=request.n)
    turn = evolve(turn, seed=options.response_id)
    if turn.stream:
        return await stream(server, exchange, ChatSse(options), turn, headers, turns=request.n)
    sink = ChatJson(options)
    exchange.answer = sink.answer
    completion = await run(server, exchange, sink, turn, request.n)
    log_answer(server, completion.body)
    return json_response(completion.body, headers=headers | completion.headers)
