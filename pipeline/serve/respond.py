"""From a request that is understood to its answer: admission, turns, and what is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar, get_args

import structlog
import trio
from attrs import evolve
from quart import Response, request

from pipeline.chain import Chain, nowhere, respond
from pipeline.config import Settings
from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst
from pipeline.ledger import Ledger
from pipeline.requests.shared.ignored import listed, refuse
from pipeline.serve.http.connection import StreamedResponse
from pipeline.serve.observe.exchange import Answered, Exchange
from pipeline.serve.server import Server
from pipeline.stage import Sink, Write
from pipeline.turn import OutputMode, Turn

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class ParsedRequest(Protocol):
    """A request of any API, as far as its headers go."""

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def strict_tools(self) -> tuple[str, ...]: ...


class AnswerSink(Sink[Result_co], Protocol[Result_co]):
    """A sink whose answer can be logged."""

    @property
    def answer(self) -> Answered: ...


# -- what the headers say --------------------------------------------------------------------------


def answer_headers(server: Server, parsed: ParsedRequest, mode: OutputMode) -> dict[str, str]:
    """The headers that say how a request was understood."""
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
    if not server.backend.takes_strict_tools:
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


# -- turns -----------------------------------------------------------------------------------------


async def admit(
    server: Server, exchange: Exchange, turn: Turn, turns: int = 1, *, counted: bool = False
) -> None:
    """Wait until a request may run; its slots are released when it is over."""
    exchange.model, exchange.stream = turn.model, bool(turn.stream)
    exchange.facts |= {
        "output_mode": server.options.output_mode_for(turn),
        "stop_after_tools_mode": server.options.effective_cut_mode,
        "messages": len(turn.items),
        "tools": len(turn.tools),
        "n": turns,
    }
    exchange.parsed = trio.current_time()
    slot = await server.admission.enter(exchange.caller, turns, counted=counted)
    exchange.release_slot = slot.close
    exchange.stack.callback(slot.close)
    exchange.admitted = trio.current_time()


async def open_turns(server: Server, exchange: Exchange, turn: Turn, turns: int = 1) -> Chain:
    """Begin the turns behind an answer; they are left when the request is over."""
    exchange.ledgers = [Ledger() for _ in range(turns)]
    turn = evolve(turn, owner=exchange.caller, request_id=exchange.request_id)
    opening = server.recipe.open_choices(server.backend.source, turn, exchange.ledgers)
    chain = await exchange.stack.enter_async_context(opening)
    server.turns.add(chain)
    exchange.stack.callback(server.turns.discard, chain)
    return chain


async def run(
    server: Server, exchange: Exchange, sink: Sink[Result], turn: Turn, turns: int = 1
) -> Result:
    """Run turns into a sink and return what it makes of them, to be sent as a whole."""
    chain = await open_turns(server, exchange, turn, turns)
    try:
        await respond(chain, sink, nowhere)
    finally:
        exchange.heard = chain.heard
    exchange.release_slot()  # a client that reads slowly must not occupy it
    exchange.sent = chain.delivered
    return sink.result()


async def stream(  # noqa: PLR0913, PLR0917
    server: Server,
    exchange: Exchange,
    sink: AnswerSink[Failure | None],
    turn: Turn,
    headers: dict[str, str],
    turns: int = 1,
    before_end: Callable[[], Awaitable[None]] | None = None,
) -> Response:
    """An answer that is sent while it is made.

    Its head waits a moment for the first bytes, because until it is sent a failure can still have a
    status of its own; after that it is part of the stream.
    """
    exchange.answer = sink.answer
    exchange.stack.enter_context(server.metrics.streams.track_inprogress())
    chain = await open_turns(server, exchange, turn, turns)
    streamed = Stream(server.options, exchange, chain, sink, before_end)
    await streamed.prime(server.options.prime_window)
    return StreamedResponse(streamed.write_all, STREAM_HEADERS | headers)


class Stream:
    """An answer on its way to a client: its turns, how it is encoded, and how it is sent."""

    def __init__(
        self,
        options: Settings,
        exchange: Exchange,
        chain: Chain,
        sink: AnswerSink[Failure | None],
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`before_end` is awaited before the end of the answer is sent."""
        self.begun = False
        """Whether anything was sent."""
        self._silence = options.ping_interval
        self._exchange = exchange
        self._chain = chain
        self._sink = _Noted(sink, exchange, log_content=options.log_content)
        self._before_end = before_end
        self._first = b""

    @property
    def finished(self) -> bool:
        """Whether what is written now is the end of the answer."""
        return self._sink.finished

    async def prime(self, seconds: float) -> None:
        """Wait a moment for the first bytes. ProxyError if the turn fails before them."""
        sink = self._sink
        try:
            with trio.move_on_after(seconds):
                while not self._first and not sink.finished:
                    self._first = sink.feed(await self._chain.receive())
        except trio.EndOfChannel:
            sink.result()  # which raises that the turn had no end
        finally:
            self._exchange.heard = self._chain.heard

    async def write_all(self, send: Write) -> None:
        """Write the whole answer. However it fails, the client is sent an end."""
        try:
            if not self._first and not self._sink.finished:
                await self._write(send, self._sink.keepalive())
            await self.write_on(send)
        except ProxyError as error:
            await self.fail(error.failure, send)
        except Exception:  # noqa: BLE001  # a bug in a stage must not take the connection along
            _log.exception("a stream broke")
            await self.fail(self._exchange.bug(), send)

    async def write_on(self, send: Write) -> None:
        """Write the answer to its end. What breaks it is raised."""
        write = partial(self._write, send)
        await respond(self._chain, self._sink, write, silence=self._silence, first=self._first)
        await trio.lowlevel.checkpoint_if_cancelled()  # a client that left has not got all of it
        self._chain.delivered()
        self._exchange.failure = self._sink.result()

    async def fail(self, failure: Failure, send: Write) -> None:
        """Write the end of an answer that was broken."""
        self._exchange.failure = failure
        await self._write(send, self._sink.fail(failure))

    async def _write(self, send: Write, data: bytes) -> None:
        if self._sink.finished and self._before_end is not None:
            before_end, self._before_end = self._before_end, None
            await before_end()
        self.begun = True
        await send(data)


class _Noted:
    """A sink of which it is noted when it began to answer, and what, where that is to be logged."""

    def __init__(
        self, sink: Sink[Failure | None], exchange: Exchange, *, log_content: bool
    ) -> None:
        self._sink = sink
        self._exchange = exchange
        self._log_content = log_content
        self.keepalive = sink.keepalive
        self.result = sink.result

    @property
    def finished(self) -> bool:
        return self._sink.finished

    def feed(self, burst: Burst) -> bytes:
        return self._note(self._sink.feed(burst))

    def fail(self, failure: Failure) -> bytes:
        return self._note(self._sink.fail(failure))

    def _note(self, data: bytes) -> bytes:
        if data:
            if not self._exchange.first_byte:
                self._exchange.first_byte = trio.current_time()
            if self._log_content:
                _log.info("answer content", data=data.decode())
        return data


def log_answer(server: Server, body: object) -> None:
    """Write a whole answer into the log, where the operator wants that."""
    if server.options.log_content:
        _log.info("answer content", body=body)
