"""The Quart-Trio app: what holds for every request, and the routes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any, Final

import structlog
import trio
from attrs import evolve, frozen
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.chain import Pipeline
from pipeline.errors import Failure, ProxyError
from pipeline.ledger import Ledger
from pipeline.serve import chat, compaction, health, mcp, models, responses, stored
from pipeline.serve.admission import Admission, Limits
from pipeline.serve.answers import here, json_response
from pipeline.serve.auth import Keys
from pipeline.serve.background import Job, find
from pipeline.serve.body import DRAINED, MIB, read_json, too_large
from pipeline.serve.closing import EndedByServer, Time
from pipeline.serve.door import Door
from pipeline.serve.exchange import HEALTH, Exchange, client_ids
from pipeline.serve.http.connection import BoundedRequest, Connection
from pipeline.serve.metrics import Metrics
from pipeline.serve.origins import Origins
from pipeline.serve.peers import ALONE, Peers
from pipeline.serve.remembered import Memory
from pipeline.serve.sealed import Sealed
from pipeline.serve.streaming import BUG
from pipeline.serve.websocket import ResponsesSocket
from pipeline.stage import Source
from pipeline.store.responses import ResponseStore, StoredResponse
from pipeline.turn import Turn

HOPELESS: Final = frozenset({500, 501, 504})
"""Statuses that a client's retry does not cure; SDKs repeat every 5xx unless they are told."""
NO_WEBSOCKET: Final = Failure(
    "no WebSocket is spoken here; send the request over HTTP",
    status=426,
    type="invalid_request_error",
    code="upgrade_required",
)
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@frozen
class Remembers:
    """What outlives a request: the store, the seal, work that nobody waits for, and peers."""

    store: ResponseStore
    sealed: Sealed
    nursery: trio.Nursery
    peers: Peers = ALONE


class Server(QuartTrio):
    """One endpoint over one backend: every request is a turn through the recipe, or several."""

    asgi_http_class = Connection
    asgi_websocket_class = ResponsesSocket  # type: ignore[assignment]
    request_class = BoundedRequest

    def __init__(
        self, settings: Settings, recipe: Pipeline, door: Door, remembers: Remembers
    ) -> None:
        super().__init__("pipeline.serve", static_folder=None)
        self.options = settings
        self.recipe = recipe
        self.door = door
        self.keys = Keys.from_settings(settings)
        self.origins = Origins(settings.cors_origins)
        self.admission = Admission(
            Limits(
                concurrency=settings.concurrency,
                per_key=settings.concurrency_per_key,
                queue=settings.queue_size,
                patience=settings.queue_timeout,
                per_minute=settings.requests_per_minute,
                keys=len(self.keys.names),
            )
        )
        self.metrics = Metrics(self.admission, door.counters)
        self.store = remembers.store
        self.sealed = remembers.sealed
        self.peers = remembers.peers
        self.background = remembers.nursery
        """Where responses are made that nobody waits for."""
        self.jobs: dict[str, Job] = {}
        self.stopping = trio.Event()
        """Set when nothing new is begun."""
        self.time = Time()
        """How long answers that are still being made may take."""
        self.url_map.strict_slashes = False
        self.url_map.merge_slashes = False
        self.config["RESPONSE_TIMEOUT"] = None  # who does not read an answer is hung up on
        # What Quart may keep of a body that nobody reads; who reads it keeps to the limit itself.
        self.config["MAX_CONTENT_LENGTH"] = int(settings.body_limit_mb * MIB) + MIB

    def create_url_adapter(self, request: Any) -> Any:
        """Routes are the same for every Host, so a strange one must not keep them from matching."""
        if request is None:
            return super().create_url_adapter(request)
        return self.url_map.bind("localhost", path_info=request.path, default_method=request.method)

    async def read_json(self) -> Any:
        """The body of the request being served."""
        settings = self.options
        limit = int(settings.body_limit_mb * MIB)
        if (request.content_length or 0) > limit * DRAINED:
            raise too_large(limit)
        body = await read_json(
            request.body,
            request.headers.get("Content-Encoding", ""),
            limit=limit,
            seconds=settings.read_timeout,
        )
        if settings.log_content:
            _log.info("request content", body=body)
        return body

    def memory(self, owner: str, nearby: Mapping[str, StoredResponse] | None = None) -> Memory:
        """What the server remembers for one caller."""
        return Memory(self.store, partial(find, self), self.sealed, owner, nearby)

    def sources(self, exchange: Exchange, turn: Turn, number: int) -> list[Source]:
        """So many turns, ready to run, and their books opened."""
        exchange.ledgers = [Ledger() for _ in range(number)]
        turn = evolve(turn, owner=exchange.caller, request_id=exchange.request_id)
        return [
            EndedByServer(self.door.source(turn.for_choice(choice)), self.time, exchange.hear)
            for choice in range(number)
        ]

    def finish(self, exchange: Exchange) -> None:
        """A request is over: count it and write its line."""
        self.metrics.count(exchange, trio.current_time() - exchange.started)
        for stage in (stage for ledger in exchange.ledgers for stage in ledger):
            for remark, times in stage.notes.items():
                _log.warning("remark", stage=stage.name, remark=remark, times=times)
        quiet = exchange.path in HEALTH
        level = _log.debug if quiet else _log.warning if exchange.status >= 500 else _log.info
        level("request", **exchange.line())


def create_app(
    settings: Settings, recipe: Pipeline | None, door: Door, remembers: Remembers
) -> Server:
    """The app, ready to be served; without a recipe, with the one the settings describe."""
    server = Server(
        settings, assembly.recipe(settings) if recipe is None else recipe, door, remembers
    )
    # Quart runs what it does not see to be async in a thread: partials it sees, lambdas not.
    server.before_request(partial(_let_in, server))
    server.after_request(partial(_complete, server))
    server.register_error_handler(ProxyError, _proxy_error)
    server.register_error_handler(HTTPException, _http_error)
    server.register_error_handler(Exception, _bug)
    for routes in (chat, responses, compaction, stored, models, mcp, health):
        routes.add_routes(server)
    return server


# -- around every request --------------------------------------------------------------------------


async def _let_in(server: Server) -> Response | None:
    """Answer a browser's question, refuse strangers, let everybody else go on."""
    exchange = here()
    exchange.route = request.url_rule.rule if request.url_rule is not None else "none"
    exchange.facts |= client_ids(request.headers.get)
    if request.method == "OPTIONS":
        answer = Response(b"", 204)
        answer.headers.remove("Content-Type")
        server.origins.preflight(request.headers.get("Origin"), request.headers, answer.headers)
        return answer
    if request.path in HEALTH:
        return None
    if not len(server.keys):
        server.origins.check(request.headers.get("Origin"), request.headers.get("Host", ""))
    if request.path.startswith("/v1"):
        exchange.caller = server.keys.caller(request.headers.get("Authorization"))
    if request.headers.get("Upgrade", "").lower() == "websocket":
        raise ProxyError(NO_WEBSOCKET)
    return None


async def _complete(server: Server, response: Response) -> Response:
    exchange = here()
    response.headers["x-request-id"] = exchange.request_id
    response.headers["Server-Timing"] = exchange.server_timing()
    server.origins.answer(request.headers.get("Origin"), response.headers)
    return response


async def _proxy_error(error: ProxyError) -> Response:
    return await _refused(error.failure)


async def _refused(failure: Failure) -> Response:
    here().failure = failure
    response = json_response(failure.body(), failure.status)
    if failure.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, ceil(failure.retry_after)))
    if failure.status in HOPELESS or failure.code == "insufficient_quota":
        response.headers["x-should-retry"] = "false"
    if failure.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _http_error(error: HTTPException) -> Response:
    """What Quart refuses by itself, such as an unknown route, in our own words."""
    status = error.code or 500
    message, code = f"{status}: {error.name}", "invalid_request_error"
    if status == 404:
        message, code = f"there is nothing at {request.method} {request.path:.200}", "not_found"
    elif status == 405:
        message = f"{request.path:.200} does not take {request.method:.20}"
        code = "method_not_allowed"
    kind = "invalid_request_error" if status < 500 else "server_error"
    response = await _refused(Failure(message, status=status, type=kind, code=code))
    allowed = getattr(error, "valid_methods", None)
    if allowed:
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


async def _bug(error: Exception) -> Response:
    _log.error("a request broke", exc_info=error)
    return await _refused(BUG)
