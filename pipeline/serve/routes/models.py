"""`GET /v1/models`: the models of the backend and of the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio
from quart import Response

from pipeline.errors import Failure, ProxyError, rejection
from pipeline.serve.answers import json_response
from pipeline.serve.backends import Models, ServerBackend
from pipeline.serve.server import Server

T = TypeVar("T")
PATIENCE: Final = 8.0
"""The longest wait of a client that lists models or tools while the backend starts."""
LONG_AGO: Final = 1_735_689_600
"""The `created` field, which Codex does not report: the first day of 2025."""


def add_routes(server: Server) -> None:
    @server.get("/v1/models")
    async def models() -> Response:
        found = await _models(server)
        names = dict.fromkeys([*found.listed, *_named(server)])
        return json_response(
            {"object": "list", "data": [_model(name) for name in names], "models": []}
        )

    @server.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        if name in _named(server):
            return json_response(_model(name))
        found = await _models(server)
        if name not in (*found.listed, *found.unlisted):
            others = ", ".join([*found.listed, *_named(server)]) or "none that the backend lists"
            raise rejection(
                f"the model {name!r:.100} does not exist; the models are: {others}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return json_response(_model(name))


def _named(server: Server) -> list[str]:
    """The models named in the settings."""
    return [name for part in server.options.models.split(",") if (name := part.strip())]


async def _models(server: Server) -> Models:
    return await in_time(server.backend, "models", server.backend.models)


async def in_time(backend: ServerBackend, what: str, ask: Callable[[], Awaitable[T]]) -> T:
    """The backend's reply; 503 if it takes too long."""
    with trio.move_on_after(PATIENCE):
        return await ask()
    reason = backend.why_not or "it did not answer in time"
    raise ProxyError(
        Failure(
            f"the backend's {what} are not known yet: {reason}",
            status=503,
            type="server_error",
            code="server_is_overloaded",
            retry_after=5.0,
        )
    )


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": LONG_AGO, "owned_by": "openai"}
