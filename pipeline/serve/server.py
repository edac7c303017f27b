"""The server: its parts, and what all routes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio
from attrs import frozen
from quart import request
from quart_trio import QuartTrio

from pipeline.config import Settings
from pipeline.recipe import Pipeline
from pipeline.serve.access.admission import Admission, Limits
from pipeline.serve.access.auth import Keys
from pipeline.serve.access.origins import Origins
from pipeline.serve.backends import ServerBackend
from pipeline.serve.body import DRAINED, MIB, read_json, too_large
from pipeline.serve.http.connection import BoundedRequest, Connection
from pipeline.serve.memory.jobs import Jobs
from pipeline.serve.memory.peers import ALONE, Peers
from pipeline.serve.memory.remembered import Memory
from pipeline.serve.memory.sealed import Sealed
from pipeline.serve.memory.sqlite import SqliteStore
from pipeline.serve.memory.stored_response import StoredResponse
from pipeline.serve.observe.exchange import HEALTH, Exchange
from pipeline.serve.observe.metrics import Metrics
from pipeline.serve.shutdown import RunningTurns

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@frozen
class Remembers:
    """What outlives a request: the store, the seal, background work, and the other workers."""

    store: SqliteStore
    sealed: Sealed
    nursery: trio.Nursery
    peers: Peers = ALONE


class Server(QuartTrio):
    """One endpoint over one backend: every request is a turn through the recipe, or several."""

    asgi_http_class = Connection
    request_class = BoundedRequest

    def __init__(
        self, settings: Settings, recipe: Pipeline, backend: ServerBackend, remembers: Remembers
    ) -> None:
        super().__init__("pipeline.serve", static_folder=None)
        self.options = settings
        self.recipe = recipe
        self.backend = backend
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
        self.metrics = Metrics(self.admission, backend.counters)
        self.store = remembers.store
        self.sealed = remembers.sealed
        self.peers = remembers.peers
        self.background = remembers.nursery
        """Where background responses are made."""
        self.jobs = Jobs(self.store, self.peers)
        self.stopping = trio.Event()
        """Set when nothing new is begun."""
        self.turns = RunningTurns()
        self.url_map.strict_slashes = False
        self.url_map.merge_slashes = False
        self.config["RESPONSE_TIMEOUT"] = None  # who does not read an answer is hung up on
        # What Quart may keep of a body that is not read; read_json keeps to the limit itself.
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
        return Memory(self.store, self.jobs.find, self.sealed, owner, nearby)

    def finish(self, exchange: Exchange) -> None:
        """A request is over: count it and write its line."""
        self.metrics.count(exchange, trio.current_time() - exchange.started)
        for stage in (stage for ledger in exchange.ledgers for stage in ledger):
            for remark, times in stage.notes.items():
                _log.warning("remark", stage=stage.name, remark=remark, times=times)
        quiet = exchange.path in HEALTH
        level = _log.debug if quiet else _log.warning if exchange.status >= 500 else _log.info
        level("request", **exchange.line())
