"""Which web pages may call us, and what their browsers are told."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from pipeline.errors import Failure, ProxyError
from pipeline.serve.auth import is_loopback

METHODS: Final = "GET, HEAD, POST, DELETE, OPTIONS"
USUAL_HEADERS: Final = "authorization, content-type"
REMEMBERED: Final = "600"
EXPOSED: Final = (
    "x-request-id, retry-after, server-timing, x-codex-tool-call-count, "
    "x-codex-tool-call-truncated, x-codex-stop-after-tools-mode, x-proxy-output-mode, "
    "x-proxy-ignored-params"
)


class Origins:
    """The origins an operator allows. One without a port stands for all of its ports."""

    def __init__(self, allowed: str) -> None:
        entries = [entry.strip().rstrip("/").lower() for entry in allowed.split(",")]
        self._exact = frozenset(entry for entry in entries if entry)

    def allows(self, origin: str) -> bool:
        origin = origin.lower()
        if "*" in self._exact or origin in self._exact:
            return True
        try:
            parts = urlsplit(origin)
            port = parts.port
        except ValueError:
            return False
        bare = f"{parts.scheme}://{parts.hostname}"
        return port is not None and origin == f"{bare}:{port}" and bare in self._exact

    def answer(self, origin: str | None, headers: Headers) -> None:
        """Tell the browser of an allowed page that it may read this answer."""
        headers.add("Vary", "Origin")
        if origin is not None and self.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def preflight(self, origin: str | None, asked: Headers, headers: Headers) -> None:
        """Tell it what it may send; every header it asks for is one that some SDK needs."""
        if origin is None or not self.allows(origin):
            return
        wanted = asked.get("Access-Control-Request-Headers", USUAL_HEADERS)
        headers["Access-Control-Allow-Headers"] = wanted
        headers["Access-Control-Allow-Methods"] = METHODS
        headers["Access-Control-Max-Age"] = REMEMBERED
        if asked.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"

    def check(self, origin: str | None, host: str) -> None:
        """Keep strange pages off a server that asks for no key.

        A browser sends simple requests without asking first, and a name that a page's owner points
        at 127.0.0.1 makes our server that page's own: only the Host it sends gives it away.
        """
        if origin is not None and not self.allows(origin):
            raise _refusal(
                f"pages of {origin} may not call this server; add it to PROXY_CORS_ORIGINS"
            )
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if not is_loopback(name):
            raise _refusal(
                f"this server is not {host}; without PROXY_API_KEYS it is reached as localhost only"
            )


def _refusal(message: str) -> ProxyError:
    return ProxyError(
        Failure(message, status=403, type="invalid_request_error", code="forbidden_origin")
    )
