"""Responses as a stream: server-sent events, or the same events as messages of a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from attrs import frozen

from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, TextDelta
from sinks.chat import UnfinishedTurnError
from sinks.feeding import Fed
from sinks.responses import ResponsesOptions
from sinks.responses_answer import ResponsesAnswer
from sinks.responses_items import Message, text_delta

_encode: Final = msgspec.json.Encoder().encode
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


@frozen
class Framing:
    """What stands around each event's JSON, and at the end of them all."""

    before: Callable[[str], bytes]
    after: bytes
    end: tuple[bytes, ...]
    error_after_failure: bool = True
    """Some clients of a stream see only the error that follows a failed response."""


SERVER_SENT: Final = Framing(
    lambda kind: b"event: %b\ndata: " % kind.encode(), b"\n\n", (b"data: [DONE]\n\n",)
)
BARE: Final = Framing(lambda _: b"", b"", (), error_after_failure=False)
"""As messages of a socket, where what follows the last event is taken for the next answer."""


class ResponsesEncoder:
    """Bursts in, one piece of bytes for each event out, numbered from 0 without a gap.

    Everything of a text delta but its number and its text is rendered once per message.
    """

    def __init__(self, options: ResponsesOptions, framing: Framing = SERVER_SENT) -> None:
        self.answer = ResponsesAnswer(options)
        self._framing = framing
        self._number = 0
        self._message: Message | None = None
        self._around_text = (b"", b"", b"")
        self.error: Failure | None = None
        """What the stream told the client went wrong."""

    @property
    def finished(self) -> bool:
        return self.answer.ended

    def frames(self, events: Iterable[Event]) -> list[bytes]:
        """What a burst adds to the stream, event by event.

        Raises ProxyError when the turn fails before anything was written: the client can still
        be told with a status of its own.
        """
        out: list[bytes] = []
        answer = self.answer
        for event in events:
            message = answer.message
            if message is not None and type(event) is TextDelta:
                text = event.text
                if text:
                    message.texts.append(text)
                    if message is not self._message:
                        self._around(message)
                    first, second, third = self._around_text
                    out.append(b"%b%d%b%b%b" % (first, self._number, second, _encode(text), third))
                    self._number += 1
            elif not answer.ended:
                out += self._framed(answer.feed(event))
                self._refuse()
        return out

    def encode(self, events: Iterable[Event]) -> bytes:
        """The bytes a burst adds to the stream."""
        return b"".join(self.frames(events))

    def keepalive(self) -> list[bytes]:
        """A sign of life for a long silence. It takes a number, so nothing may overtake it.

        A stream that has not begun begins with it: from then on a failure is told within.
        """
        if self.finished:
            return []
        alive = [*self.answer.begin(), {"type": "keepalive"}]
        return self._framed(alive)

    def whole(self, items: Iterable[dict[str, Any]]) -> list[bytes]:
        """A stream of items that are there at once, from its beginning to its end."""
        return self._framed(self.answer.whole(items))

    def fail(self, failure: Failure) -> list[bytes]:
        """How a stream ends that can no longer be refused with a status of its own."""
        return self._framed(self.answer.fail(failure))

    def _refuse(self) -> None:
        answer = self.answer
        if answer.ended and not answer.started and answer.error is not None:
            self.error = answer.error
            raise ProxyError(answer.error)

    def _framed(self, events: Sequence[dict[str, Any]]) -> list[bytes]:
        out: list[bytes] = []
        for event in events:
            kind = event["type"]
            if kind == "error" and not self._framing.error_after_failure:
                continue
            numbered = {"type": kind, "sequence_number": self._number} | event
            self._number += 1
            out.append(
                b"%b%b%b" % (self._framing.before(kind), _encode(numbered), self._framing.after)
            )
        if events and self.answer.ended:
            self.error = self.answer.error
            out += self._framing.end
        return out

    def _around(self, message: Message) -> None:
        """Render what stands around the texts of a message."""
        event = text_delta(message.place, "")
        kind = event.pop("type")
        head = self._framing.before(kind) + b'{"type":%b,"sequence_number":' % _encode(kind)
        before, after = _encode(event)[1:].rsplit(b'"delta":""', 1)
        self._message = message
        self._around_text = head, b"," + before + b'"delta":', after + self._framing.after


class _Stream(Fed[Failure | None]):
    """Writes each burst's events as they come.

    The result is the failure that the stream ended with, if it did.
    """

    def __init__(self, options: ResponsesOptions, framing: Framing) -> None:
        self._encoder = ResponsesEncoder(options, framing)

    @property
    def answer(self) -> ResponsesAnswer:
        """The answer as far as it has been written."""
        return self._encoder.answer

    @property
    def finished(self) -> bool:
        return self._encoder.finished

    async def take(self, burst: Burst) -> None:
        frames = self._encoder.frames(burst)
        if frames:
            await self._send(frames)

    async def tell(self, items: Iterable[dict[str, Any]]) -> None:
        """Write a whole response of items that are there at once."""
        await self._send(self._encoder.whole(items))

    async def _send(self, frames: list[bytes]) -> None:
        raise NotImplementedError

    def result(self) -> Failure | None:
        if not self.finished:
            raise UnfinishedTurnError
        return self._encoder.error


class ResponsesSse(_Stream):
    """The stream as server-sent events, one write per burst."""

    def __init__(self, options: ResponsesOptions, write: Write) -> None:
        super().__init__(options, SERVER_SENT)
        self._write = write

    async def _send(self, frames: list[bytes]) -> None:
        await self._write(b"".join(frames))

    def keepalive(self) -> bytes:
        """A sign of life for a long silence, to be written before anything that comes later."""
        return b"".join(self._encoder.keepalive())

    def fail(self, failure: Failure) -> bytes:
        """The end of a stream whose status 200 is out; empty if it has ended already."""
        return b"".join(self._encoder.fail(failure))


class ResponsesMessages(_Stream):
    """The stream as messages of a socket: one write for each event, and no `[DONE]`."""

    def __init__(self, options: ResponsesOptions, write: Write) -> None:
        super().__init__(options, BARE)
        self._write = write

    async def _send(self, frames: list[bytes]) -> None:
        for frame in frames:
            await self._write(frame)

    def keepalive(self) -> list[bytes]:
        """A sign of life for a long silence, to be written before anything that comes later."""
        return self._encoder.keepalive()

    def fail(self, failure: Failure) -> list[bytes]:
        """The end of a stream that began, or that cannot be refused otherwise."""
        return self._encoder.fail(failure)
