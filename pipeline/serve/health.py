"""Whether the server lives and can serve, and what it has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response, request

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import is_json, text_of
from pipeline.serve.answers import json_response
from pipeline.serve.auth import is_loopback, same_secret
from pipeline.serve.metrics import by_worker

if TYPE_CHECKING:
    from pipeline.serve.app import Server


def add_routes(server: Server) -> None:
    @server.get("/livez")
    async def livez() -> Response:
        return json_response({"status": "alive"})

    @server.get("/readyz")
    async def readyz() -> Response:
        reason = _why_not(server)
        if not reason:
            return json_response({"status": "ready"})
        return json_response({"status": "not ready", "reason": reason}, 503)

    @server.get("/healthz")
    async def healthz() -> Response:
        reason = _why_not(server)
        others = list(filter(is_json, await server.peers.ask("health")))
        workers = server.options.workers
        if not reason and workers > 1 + len(others):
            reason = f"only {1 + len(others)} of {workers} workers answer"
        told: dict[str, Any] = {
            "status": "degraded" if reason else "ok",
            "turns": server.admission.running + sum(one["turns"] for one in others),
            "waiting": server.admission.waiting + sum(one["waiting"] for one in others),
        }
        if workers > 1:
            told["workers"] = 1 + len(others)
        if reason:
            told["reason"] = reason
        return json_response(told)

    @server.get("/metrics")
    async def metrics() -> Response:
        _may_read_metrics(server)
        text = server.metrics.exposition()
        if name := server.peers.name:
            others = filter(is_json, await server.peers.ask("metrics"))
            told = {text_of(one["name"]): text_of(one["text"]) for one in others}
            text = by_worker({name: text.decode(), **told})
        return Response(text, content_type=CONTENT_TYPE_LATEST)


def _why_not(server: Server) -> str:
    """Why no turn can run; strangers are only told that it is so."""
    if server.time.is_up:
        return "the server is being stopped"
    reason = server.door.why_not
    return reason if not reason or is_loopback(request.remote_addr or "") else "no backend"


def _may_read_metrics(server: Server) -> None:
    token = server.options.metrics_token
    if not token:  # a strange page's browser is on this machine too
        server.origins.check(request.headers.get("Origin"), request.headers.get("Host", ""))
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    allowed = same_secret(given, token) if token else is_loopback(request.remote_addr or "")
    if not allowed:
        raise ProxyError(
            Failure(
                "the metrics need the token of PROXY_METRICS_TOKEN, as `Authorization: Bearer …`, "
                "or, where none is set, a caller on the same machine",
                status=401,
                type="invalid_request_error",
                code="invalid_api_key",
            )
        )
