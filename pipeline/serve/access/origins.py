"""CORS: which web pages may call the server, and the headers for their browsers."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from pipeline.errors import ProxyError, rejection
from pipeline.serve.access.auth import is_loopback

METHODS: Final = "GET, HEAD, POST, DELETE, OPTIONS"
DEFAULT_HEADERS: Final = "authorization, content-type"
REMEMBERED: Final = "600"
EXPOSED: Final = (
    "x-request-id, retry-after, server-timing, x-codex-tool-call-count, "
    "x-codex-tool-call-truncated, x-codex-stop-after-tools-mode, x-proxy-output-mode, "
    "x-proxy-ignored-params"
)


class Origins:
    """The allowed origins. One without a port allows all its ports."""

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
        """Add the headers that let an allowed page read this response."""
        headers.add("Vary", "Origin")
        if origin is not None and self.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def preflight(self, origin: str | None, asked: Headers, headers: Headers) -> None:
        """Add the headers of a preflight response; SDKs need all the headers that they request."""
        if origin is None or not self.allows(origin):
            return
        wanted = asked.get("Access-Control-Request-Headers", DEFAULT_HEADERS)
        headers["Access-Control-Allow-Headers"] = wanted
        headers["Access-Control-Allow-Methods"] = METHODS
        headers["Access-Control-Max-Age"] = REMEMBERED
        if asked.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"

    def check(self, origin: str | None, host: str) -> None:
        """Reject pages of other origins on a server without API keys.

        A browser sends simple requests without a preflight. And with DNS rebinding, a page's own
        name resolves to 127.0.0.1, which only the Host header reveals.
        """
        if origin is not None and not self.allows(origin):
            raise _forbidden(f"the origin {origin} is not allowed; add it to PROXY_CORS_ORIGINS")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if not is_loopback(name):
            raise _forbidden(
                f"the host {host} is not allowed; without PROXY_API_KEYS, use localhost"
            )


def _forbidden(message: str) -> ProxyError:
    return rejection(message, status=403, code="forbidden_origin")
