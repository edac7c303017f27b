"""Responses that are made while nobody waits: asked for, polled, cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
import trio
from attrs import Factory, define, evolve
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import Json
from pipeline.serve.answers import json_response
from pipeline.serve.exchange import Exchange
from pipeline.serve.streaming import BUG
from pipeline.store.responses import StoredResponse
from sinks.responses import error_code, error_message, response_object

if TYPE_CHECKING:
    from pipeline.serve.app import Server
    from pipeline.serve.responses import Asked

ABANDONED: Final = Failure("the server ended while it made this response; send the request again")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@define
class Job:
    """One response that is being made."""

    scope: trio.CancelScope = Factory(trio.CancelScope)
    over: trio.Event = Factory(trio.Event)


async def begin(
    server: Server, exchange: Exchange, asked: Asked, headers: dict[str, str]
) -> Response:
    """Start a response, and answer with what there is of it: its id and its place in the queue."""
    if asked.request.stream:
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
    queued = _state(asked, "queued")
    await asked.memory.keep(asked.request, queued)
    job = Job()
    server.jobs[asked.options.response_id] = job
    own = Exchange.of("POST", exchange.path, exchange.request_id)
    own.caller, own.route, own.status = exchange.caller, exchange.route, 200
    own.facts = {**exchange.facts, "background": asked.options.response_id}
    server.background.start_soon(_work, server, own, asked, job)
    return json_response(queued, headers=headers)


async def _work(server: Server, exchange: Exchange, asked: Asked, job: Job) -> None:
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
    last: dict[str, Any] | None = _state(asked, "cancelled")
    try:
        with job.scope:
            last = await _make(server, exchange, asked)
    finally:
        if last is not None:
            await asked.memory.keep(asked.request, last)
        del server.jobs[asked.options.response_id]
        job.over.set()
        server.finish(exchange)


async def _make(server: Server, exchange: Exchange, asked: Asked) -> dict[str, Any] | None:
    """Make a response and remember it; one that failed is only returned."""
    from pipeline.serve.asking import enter  # noqa: PLC0415
    from pipeline.serve.responses import answer  # noqa: PLC0415  # each needs the other

    try:
        with await enter(server, exchange, asked.turn, counted=True):
            await asked.memory.keep(asked.request, _state(asked, "in_progress"))
            await answer(server, exchange, asked)
            return None
    except ProxyError as error:
        exchange.failure = error.failure
    except Exception:  # noqa: BLE001  # a bug must not take the server along
        _log.exception("a response in the background broke")
        exchange.failure = BUG
    failure = exchange.failure
    return as_failed(response_object(asked.options, "failed"), failure)


async def find(server: Server, owner: str, response_id: str) -> StoredResponse | None:
    """What is kept of a response; one that is not finished, and made by nobody, has failed."""
    being_made = response_id in server.jobs  # looked up first: at its end it is kept, then gone
    stored = await server.store.get(owner, response_id)
    if stored is not None and stored.unfinished and not being_made:
        replies = await server.peers.ask("makes", id=response_id)
        being_made = any(reply is not False for reply in replies)  # a silent one may be making it
        stored = await server.store.get(owner, response_id)
    if stored is None or not stored.unfinished or being_made:
        return stored
    return evolve(stored, response=as_failed(stored.response, ABANDONED))


def as_failed(response: Json, failure: Failure) -> dict[str, Any]:
    """A response with the failure that it ended with."""
    error = {"code": error_code(failure), "message": error_message(failure)}
    return {**response, "status": "failed", "error": error}


def _state(asked: Asked, status: str) -> dict[str, Any]:
    return response_object(asked.options, "in_progress") | {"status": status}
