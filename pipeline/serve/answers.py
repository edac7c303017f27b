"""What every route needs: the exchange it is part of, and an answer in JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from quart import Response, request

from pipeline.serve.observe.exchange import Exchange

_encode: Final = msgspec.json.Encoder().encode


def here() -> Exchange:
    """The exchange of the request being served."""
    scope: Any = request.scope  # its type knows only what ASGI puts there
    exchange: Exchange = scope["exchange"]
    return exchange


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(_encode(body), status, headers, content_type="application/json")
