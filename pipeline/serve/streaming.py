"""An answer that is sent while it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
import trio
from quart import Response

from pipeline.errors import Failure, ProxyError
from pipeline.serve.exchange import Exchange
from pipeline.serve.http.interface import Write

BUG: Final = Failure("the server made a mistake; its log tells which", code="internal_error")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Voice(Protocol):
    """How a format says what is not part of an answer."""

    def keepalive(self) -> bytes: ...

    def fail(self, failure: Failure) -> bytes: ...


class Outlet:
    """Where a stream's bytes go: straight to the client, once the answer's head is out.

    The head waits a moment for the first bytes, because until it is sent a failure can still have
    a status of its own; after that it is told within the stream.
    """

    def __init__(self, exchange: Exchange, silence: float) -> None:
        self._exchange = exchange
        self._voice: Voice | None = None
        self._silence = silence
        self._send: Write | None = None
        self._opened = trio.Event()
        self._first = trio.Event()
        self._ended = trio.Event()
        self._committed = False
        self._early: Failure | None = None
        self._unsent = b""
        """What waits for the head."""
        self._last_sent = 0.0

    async def write(self, data: bytes) -> None:
        """Send some whole events. Once given, they go out, even if the caller is cancelled."""
        if self._exchange.before_send is not None:
            await self._exchange.before_send()
        self._unsent += data
        if self._send is None:
            self._first.set()
            await self._opened.wait()
        data, self._unsent = self._unsent, b""
        if not self._exchange.first_byte:
            self._exchange.first_byte = trio.current_time()
        await self._body(data)

    async def run(self, voice: Voice, work: Callable[[], Awaitable[Failure | None]]) -> None:
        """Do what writes here; however it fails, the client is told."""
        self._voice = voice
        try:
            self._exchange.failure = await work()
        except ProxyError as error:
            await self._fail(error.failure)
        except Exception:  # noqa: BLE001  # a bug in a stage must not take the connection along
            _log.exception("a stream broke")
            await self._fail(BUG)
        finally:
            self._ended.set()
            self._first.set()

    async def _fail(self, failure: Failure) -> None:
        self._exchange.failure = failure
        if self._committed and self._voice is not None:
            await self.write(self._voice.fail(failure))
        else:
            self._early = failure

    async def prime(self, seconds: float) -> None:
        """Wait a moment for the first bytes. ProxyError if the work failed before them."""
        with trio.move_on_after(seconds):
            await self._first.wait()
        if self._early is not None:
            raise ProxyError(self._early)
        self._committed = True

    async def pour(self, send: Write) -> None:
        """Let the bytes out until the work is done, with a comment into every long silence."""
        self._send = send
        self._last_sent = trio.current_time()
        self._opened.set()
        if not self._first.is_set():
            await self._keep_alive()
        while not self._ended.is_set():
            due = self._last_sent + self._silence
            with trio.move_on_at(due):
                await self._ended.wait()
                return
            if trio.current_time() >= self._last_sent + self._silence:
                await self._keep_alive()

    async def _keep_alive(self) -> None:
        if self._voice is not None:
            await self._body(self._voice.keepalive())

    async def _body(self, data: bytes) -> None:
        assert self._send is not None  # noqa: S101
        self._last_sent = trio.current_time()
        # Events are numbered, so none may be missing: what is sent here is written whole.
        await self._send(data)


class StreamedResponse(Response):
    """A response whose body pours out of an outlet."""

    def __init__(self, outlet: Outlet, headers: dict[str, str]) -> None:
        super().__init__(b"", headers=headers)  # pyright: ignore[reportUnknownMemberType]
        self.headers.remove("Content-Length")
        self.outlet = outlet
