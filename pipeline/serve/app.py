"""The app: what happens around every request, and the routes."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Final

import structlog
from quart import Response, request
from werkzeug.exceptions import HTTPException

from pipeline import config
from pipeline.config import Settings
from pipeline.errors import Failure, ProxyError
from pipeline.recipe import Pipeline
from pipeline.serve.answers import here, json_response
from pipeline.serve.backends import ServerBackend
from pipeline.serve.observe.exchange import HEALTH, client_ids
from pipeline.serve.routes import chat, compaction, health, mcp, models, responses, stored
from pipeline.serve.routes.websocket import ResponsesSocket
from pipeline.serve.server import Remembers, Server

HOPELESS: Final = frozenset({500, 501, 504})
"""Statuses that a client's retry does not cure; SDKs repeat every 5xx without a header."""
NO_WEBSOCKET: Final = Failure(
    "no WebSocket is spoken here; send the request over HTTP",
    status=426,
    type="invalid_request_error",
    code="upgrade_required",
)
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def create_app(
    settings: Settings, recipe: Pipeline | None, backend: ServerBackend, remembers: Remembers
) -> Server:
    """The app, ready to be served; without a recipe, with the one the settings describe."""
    server = Server(
        settings, config.recipe(settings) if recipe is None else recipe, backend, remembers
    )
    server.asgi_websocket_class = ResponsesSocket  # type: ignore[assignment]
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
    return await _refused(here().bug())
