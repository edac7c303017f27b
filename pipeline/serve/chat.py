"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, get_args
from urllib.parse import quote

import structlog
import trio
from attrs import evolve
from quart import Response, request

from pipeline import recipes
from pipeline.choices import run_choices
from pipeline.errors import Failure, ProxyError
from pipeline.requests.chat import ChatRequest
from pipeline.serve.answers import here, json_response
from pipeline.serve.exchange import Exchange
from pipeline.serve.streaming import Outlet, StreamedResponse
from pipeline.turn import OutputMode, Turn
from sinks.chat import ChatOptions
from sinks.chat_json import ChatJson
from sinks.chat_sse import ChatSse, error_frames

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pipeline.serve.app import Server

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
MOST_NAMED: Final = 32
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def add_routes(server: Server) -> None:
    @server.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await _answer(server)


async def _answer(server: Server) -> Response:
    exchange = here()
    wish = ChatRequest.from_json(await server.read_json())
    turn = wish.turn(server.options, output_mode=wished_output_mode())
    headers = _told_about(server, wish, turn)
    exchange.model, exchange.stream = turn.model, bool(turn.stream)
    exchange.facts |= {"messages": len(turn.items), "tools": len(turn.tools), "n": wish.n}
    exchange.parsed = trio.current_time()
    with await server.admission.enter(exchange.caller, wish.n) as place:
        exchange.admitted = trio.current_time()
        options = evolve(recipes.chat_options(server.options, turn), choices=wish.n)
        if turn.stream:
            return await _stream(server, exchange, turn, options, place, headers)
        sink = ChatJson(options)
        exchange.answer = sink.answer
        sources = server.sources(exchange, turn, options.choices)
        completion = await run_choices(server.recipe, sources, sink, turn, exchange.ledgers)
    return json_response(completion.body, headers=headers | completion.headers)


async def _stream(  # noqa: PLR0913, PLR0917
    server: Server,
    exchange: Exchange,
    turn: Turn,
    options: ChatOptions,
    place: ExitStack,
    headers: dict[str, str],
) -> Response:
    settings = server.options
    outlet = Outlet(exchange, error_frames, settings.ping_interval)
    write = partial(_write_and_log, outlet.write) if settings.log_content else outlet.write
    sink = ChatSse(options, write)
    exchange.answer = sink.answer
    sources = server.sources(exchange, turn, options.choices)
    taken = place.pop_all()  # from here on the stream's own

    async def work() -> Failure | None:
        with taken, server.metrics.streams.track_inprogress():
            return await run_choices(server.recipe, sources, sink, turn, exchange.ledgers)

    exchange.start(outlet.run, work)
    await outlet.prime(settings.prime_window)
    return StreamedResponse(outlet, STREAM_HEADERS | headers)


def _told_about(server: Server, wish: ChatRequest, turn: Turn) -> dict[str, str]:
    """The headers that tell how a request was understood; strict ones are refused instead."""
    strict = request.headers.get("x-proxy-strict", "").strip().lower() in {"1", "true"}
    if strict or server.options.strict_params:
        wish.refuse_ignored()
    headers = {
        "x-proxy-output-mode": server.options.output_mode_for(turn),
        "x-codex-stop-after-tools-mode": server.options.effective_cut_mode,
    }
    if wish.ignored:  # names are the client's own, and a header takes only so much
        names = [quote(name[:80], safe="[]") for name in wish.ignored[:MOST_NAMED]]
        headers["x-proxy-ignored-params"] = ", ".join(names)
    return headers


def wished_output_mode() -> OutputMode | None:
    """The output mode that the request's header asks for."""
    wished = request.headers.get("x-proxy-output-mode", "").strip().lower()
    if not wished:
        return None
    for mode in get_args(OutputMode):
        if mode == wished:
            return mode  # type: ignore[no-any-return]
    raise ProxyError(
        Failure(
            f"the header x-proxy-output-mode takes {', '.join(get_args(OutputMode))}, not "
            f"{wished:.40}",
            status=400,
            type="invalid_request_error",
            code="invalid_request_error",
            param="x-proxy-output-mode",
        )
    )


async def _write_and_log(write: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
    _log.info("answer content", data=data.decode())
    await write(data)
