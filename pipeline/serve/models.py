"""`GET /v1/models`: what the backend offers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.serve.answers import json_response
from pipeline.serve.door import Door, Models

if TYPE_CHECKING:
    from pipeline.serve.app import Server

T = TypeVar("T")
PATIENCE: Final = 8.0
"""A client that lists models or tools waits no longer, however cold the backend is."""
LONG_AGO: Final = 1_735_689_600
"""OpenAI's objects have a date of creation, and Codex tells none: the first day of 2025."""


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
            raise ProxyError(
                Failure(
                    f"the model {name!r:.100} does not exist here; there are {others}",
                    status=404,
                    type="invalid_request_error",
                    code="model_not_found",
                    param="model",
                )
            )
        return json_response(_model(name))


def _named(server: Server) -> list[str]:
    """The models that the operator named."""
    return [name for part in server.options.models.split(",") if (name := part.strip())]


async def _models(server: Server) -> Models:
    return await in_time(server.door, "models", server.door.models)


async def in_time(door: Door, what: str, ask: Callable[[], Awaitable[T]]) -> T:
    """What the backend tells of itself; 503 where that takes too long."""
    with trio.move_on_after(PATIENCE):
        return await ask()
    reason = door.why_not or "it did not answer in time"
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
