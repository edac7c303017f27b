"""Responses that are made in the background: started, polled, cancelled."""

from __future__ import annotations

from typing import Any

import structlog
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.serve.answers import json_response
from pipeline.serve.memory.jobs import Job, as_failed
from pipeline.serve.observe.exchange import Exchange
from pipeline.serve.respond import admit
from pipeline.serve.routes.prepared import Prepared, whole_answer
from pipeline.serve.server import Server
from sinks.responses import response_object

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def begin(
    server: Server, exchange: Exchange, prepared: Prepared, headers: dict[str, str]
) -> Response:
    """Start a response, and answer with what there is of it: its id and its place in the queue."""
    if prepared.request.stream:
        raise ProxyError(
            Failure(
                "a response in the background is polled, not streamed; leave out stream or "
                "background",
                status=400,
                type="invalid_request_error",
                code="invalid_request_error",
                param="stream",
            )
        )
    server.admission.check(exchange.caller)
    queued = _state(prepared, "queued")
    await prepared.memory.keep(prepared.request, queued)
    job = Job(last=_state(prepared, "cancelled"))
    server.jobs[prepared.options.response_id] = job
    own = Exchange.of("POST", exchange.path, exchange.request_id)
    own.caller, own.route, own.status = exchange.caller, exchange.route, 200
    own.facts = {**exchange.facts, "background": prepared.options.response_id}
    server.background.start_soon(_work, server, own, prepared, job)
    return json_response(queued, headers=headers)


async def _work(server: Server, exchange: Exchange, prepared: Prepared, job: Job) -> None:
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
    try:
        with job.scope:
            await _make(server, exchange, prepared, job)
    finally:
        if job.last is not None:
            await prepared.memory.keep(prepared.request, job.last)
        del server.jobs[prepared.options.response_id]
        job.over.set()
        server.finish(exchange)


async def _make(server: Server, exchange: Exchange, prepared: Prepared, job: Job) -> None:
    """Make a response and store it. Once it is stored, nothing takes its place."""
    try:
        async with exchange.stack:
            await admit(server, exchange, prepared.turn, counted=True)
            await prepared.memory.keep(prepared.request, _state(prepared, "in_progress"))
            await whole_answer(server, exchange, prepared)
            job.last = None
            exchange.sent()
            return
    except ProxyError as error:
        failure = error.failure
    except Exception:  # noqa: BLE001  # a bug must not take the server along
        _log.exception("a response in the background broke")
        failure = exchange.bug()
    exchange.failure = failure
    if job.last is not None:
        job.last = as_failed(response_object(prepared.options, "failed"), failure)


def _state(prepared: Prepared, status: str) -> dict[str, Any]:
    return response_object(prepared.options, "in_progress") | {"status": status}
