"""What every API has in common once a request is understood: headers, a place, a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, get_args

import structlog
import trio
from quart import Response, request

from pipeline.choices import run_choices
from pipeline.errors import Failure, ProxyError
from pipeline.requests.shared.ignored import listed, refuse
from pipeline.serve.admission import Place
from pipeline.serve.exchange import Answered, Exchange
from pipeline.serve.http.interface import Write
from pipeline.serve.streaming import Outlet, StreamedResponse, Voice
from pipeline.turn import OutputMode, Turn
from sinks.choices import Shared

if TYPE_CHECKING:
    from pipeline.serve.app import Server

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
Result = TypeVar("Result")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ParsedRequest(Protocol):
    """A request of any API, as far as its headers go."""

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def strict_tools(self) -> tuple[str, ...]: ...


class StreamSink(Voice, Protocol):
    """A sink that writes a stream, and what else a stream needs."""

    @property
    def answer(self) -> Answered: ...


SinkT = TypeVar("SinkT", bound=StreamSink)


def told_about(server: Server, parsed: ParsedRequest, mode: OutputMode) -> dict[str, str]:
    """The headers that tell how a request was understood; strict ones are refused instead."""
    names = without_effect(server, parsed, request.headers.get("x-proxy-strict", ""))
    headers = {
        "x-proxy-output-mode": mode,
        "x-codex-stop-after-tools-mode": server.options.effective_cut_mode,
    }
    if names:
        headers["x-proxy-ignored-params"] = ", ".join(names)
    return headers


def without_effect(server: Server, parsed: ParsedRequest, strict: str) -> tuple[str, ...]:
    """The parameters that have no effect on this backend.

    ProxyError for the first of them where they are refused: by the operator's setting, or by the
    client's in `strict`, the value of its header.
    """
    names = parsed.ignored
    if not server.door.takes_strict_tools:
        names = listed((*names, *parsed.strict_tools))
    if server.options.strict_params or strict.strip().lower() in {"1", "true"}:
        refuse(names)
    return names


def requested_output_mode() -> OutputMode | None:
    """The output mode that the request's header asks for."""
    return output_mode_from(request.headers.get("x-proxy-output-mode", ""))


def output_mode_from(header: str) -> OutputMode | None:
    requested = header.strip().lower()
    if not requested:
        return None
    for mode in get_args(OutputMode):
        if mode == requested:
            return mode  # type: ignore[no-any-return]
    raise ProxyError(
        Failure(
            f"the header x-proxy-output-mode takes {', '.join(get_args(OutputMode))}, not "
            f"{requested:.40}",
            status=400,
            type="invalid_request_error",
            code="invalid_request_error",
            param="x-proxy-output-mode",
        )
    )


async def enter(
    server: Server, exchange: Exchange, turn: Turn, turns: int = 1, *, counted: bool = False
) -> Place:
    """A place for a request that is understood; what is told of it is noted."""
    exchange.model, exchange.stream = turn.model, bool(turn.stream)
    exchange.facts |= {
        "output_mode": server.options.output_mode_for(turn),
        "stop_after_tools_mode": server.options.effective_cut_mode,
        "messages": len(turn.items),
        "tools": len(turn.tools),
        "n": turns,
    }
    exchange.parsed = trio.current_time()
    place = await server.admission.enter(exchange.caller, turns, counted=counted)
    exchange.admitted = trio.current_time()
    return place


async def run(
    server: Server, exchange: Exchange, sink: Shared[Result], turn: Turn, turns: int = 1
) -> Result:
    """Run a turn, or several as choices, into a sink."""
    sources = server.sources(exchange, turn, turns)
    return await run_choices(server.recipe, sources, sink, turn, exchange.ledgers)


async def stream(  # noqa: PLR0913, PLR0917
    server: Server,
    exchange: Exchange,
    place: Place,
    make_sink: Callable[[Write], SinkT],
    work: Callable[[SinkT], Awaitable[Failure | None]],
    headers: dict[str, str],
) -> Response:
    """An answer that is sent while it is made: `work` makes it, in the request's own nursery."""
    settings = server.options
    outlet = Outlet(exchange, settings.ping_interval)
    write = partial(_write_and_log, outlet.write) if settings.log_content else outlet.write
    sink = make_sink(write)
    exchange.answer = sink.answer
    taken = place.pass_on()  # from here on the stream's own

    async def make() -> Failure | None:
        with taken, server.metrics.streams.track_inprogress():
            return await work(sink)

    exchange.start(outlet.run, sink, make)
    await outlet.prime(settings.prime_window)
    return StreamedResponse(outlet, STREAM_HEADERS | headers)


def log_answer(server: Server, body: object) -> None:
    """Write a whole answer into the log, where the operator wants that."""
    if server.options.log_content:
        _log.info("answer content", body=body)


async def _write_and_log(write: Write, data: bytes) -> None:
    _log.info("answer content", data=data.decode())
    await write(data)
