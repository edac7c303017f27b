"""Refuses requests that h11 reads although RFC 9112 does not allow them."""

from __future__ import annotations

import re
from typing import Final

import h11
from h11._readers import ChunkedReader

LARGEST_CHUNK: Final = 2**62
_AUTHORITY: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class StrictConnection(h11.Connection):
    """Reads one meaning into a request, or none.

    Where a server and a proxy in front of it disagree about the end of a request, one request can
    be hidden in another.
    """

    refusal = ""
    """What was wrong with the request, and what would be right."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_lines(self.trailing_data[0].partition(b"\r\n\r\n")[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_request(event)
        reader = self._reader
        if isinstance(reader, ChunkedReader):
            left = reader._bytes_in_chunk  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if left > LARGEST_CHUNK:
                self._refuse("a chunk of the body is too large; send a smaller one")
        return event

    def _check_lines(self, head: bytes) -> None:
        if head.count(b"\n") != head.count(b"\r\n"):
            self._refuse("a line of the head ends with LF alone; end it with CR LF")
        if b"\n " in head or b"\n\t" in head:
            self._refuse("a header is continued on a second line; send it in one")

    def _check_request(self, request: h11.Request) -> None:
        headers = dict(request.headers)
        if not request.http_version.startswith(b"1."):
            self._refuse("this version of HTTP is not understood; send HTTP/1.1", 505)
        if b"transfer-encoding" in headers:
            if b"content-length" in headers:
                self._refuse("content-length and transfer-encoding exclude each other; send one")
            if request.http_version < b"1.1":
                self._refuse("HTTP/1.0 has no transfer-encoding; send a content-length")
        expected = [value.lower() for name, value in request.headers if name == b"expect"]
        if request.http_version >= b"1.1" and set(expected) - {b"100-continue"}:
            self._refuse("this expectation is not understood; send 100-continue, or none", 417)
        whole = _AUTHORITY.match(request.target)
        if whole and whole[1].lower() != headers.get(b"host", b"").lower():
            self._refuse("the address and the Host header differ; send the same host in both", 421)

    def _refuse(self, why: str, status: int = 400) -> None:
        self.refusal = why
        raise h11.RemoteProtocolError(why, error_status_hint=status)
