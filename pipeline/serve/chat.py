"""`POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve
from quart import Response

from pipeline import assembly
from pipeline.errors import Failure
from pipeline.requests.chat import ChatRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.asking import enter, log_answer, requested_output_mode, run, stream, told_about
from sinks.chat_json import ChatJson
from sinks.chat_sse import ChatSse

if TYPE_CHECKING:
    from pipeline.serve.app import Server


def add_routes(server: Server) -> None:
    @server.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await _answer(server)


async def _answer(server: Server) -> Response:
    exchange = here()
    request = ChatRequest.from_json(
        await server.read_json(), without_effect=server.door.without_effect
    )
    turn = request.turn(server.options, output_mode=requested_output_mode())
    headers = told_about(server, request, server.options.output_mode_for(turn))
    with await enter(server, exchange, turn, request.n) as place:
        options = evolve(assembly.chat_options(server.options, turn), choices=request.n)
        turn = evolve(turn, seed=options.response_id)
        if turn.stream:

            async def work(sink: ChatSse) -> Failure | None:
                return await run(server, exchange, sink, turn, request.n)

            return await stream(server, exchange, place, partial(ChatSse, options), work, headers)
        sink = ChatJson(options)
        exchange.answer = sink.answer
        completion = await run(server, exchange, sink, turn, request.n)
    log_answer(server, completion.body)
    return json_response(completion.body, headers=headers | completion.headers)
