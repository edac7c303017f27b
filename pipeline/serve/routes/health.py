"""Liveness, readiness, the health summary, and metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response, request

from pipeline.loose_json import is_json, text_of
from pipeline.serve.access.auth import is_loopback, same_secret, unauthorized
from pipeline.serve.answers import json_response
from pipeline.serve.observe.metrics import by_worker
from pipeline.serve.server import Server


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
            reason = f"only {1 + len(others)} of {workers} workers reply"
        summary: dict[str, Any] = {
            "status": "degraded" if reason else "ok",
            "turns": server.admission.running + sum(one["turns"] for one in others),
            "waiting": server.admission.waiting + sum(one["waiting"] for one in others),
        }
        if workers > 1:
            summary["workers"] = 1 + len(others)
        if reason:
            summary["reason"] = reason
        return json_response(summary)

    @server.get("/metrics")
    async def metrics() -> Response:
        _may_read_metrics(server)
        text = server.metrics.exposition()
        if name := server.peers.name:
            others = filter(is_json, await server.peers.ask("metrics"))
            rest = {text_of(one["name"]): text_of(one["text"]) for one in others}
            text = by_worker({name: text.decode(), **rest})
        return Response(text, content_type=CONTENT_TYPE_LATEST)


def _why_not(server: Server) -> str:
    """Why no turn can run; remote callers get no details."""
    if server.turns.ended:
        return "the server is shutting down"
    reason = server.backend.why_not
    return reason if not reason or is_loopback(request.remote_addr or "") else "no backend"


def _may_read_metrics(server: Server) -> None:
    token = server.options.metrics_token
    if not token:  # a page of another origin may run in a browser on this machine
        server.origins.check(request.headers.get("Origin"), request.headers.get("Host", ""))
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    allowed = same_secret(given, token) if token else is_loopback(request.remote_addr or "")
    if not allowed:
        raise unauthorized(
            "the metrics need the token of PROXY_METRICS_TOKEN, as `Authorization: Bearer …`, "
            "or, if none is set, a caller on the same machine"
        )
