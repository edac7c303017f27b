"""Responses as a stream: server-sent events, or the same events as messages of a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event, TextDelta
from sinks.answer import UnfinishedTurnError
from sinks.responses.answer import ResponsesAnswer
from sinks.responses.items import Message, text_delta
from sinks.responses.options import ResponsesOptions

_encode: Final = msgspec.json.Encoder().encode


class _Stream:
    """Bursts in, bytes out: events numbered from 0 without a gap, and nothing after the last.

    Everything of a text delta but its number and its text is rendered once per message.
    """

    _after = b""
    """What stands after each event's JSON."""
    _end = b""
    """What stands after the last event."""
    _error_after_failure = True
    """Whether an error follows a failed response."""

    def __init__(self, options: ResponsesOptions) -> None:
        self.answer = ResponsesAnswer(options)
        self._number = 0
        self._message: Message | None = None
        self._delta = b""
        """A text delta of that message, with places for its number and its text."""

    @property
    def finished(self) -> bool:
        return self.answer.ended

    @property
    def call_ids(self) -> tuple[str, ...]:
        return self.answer.call_ids

    def feed(self, burst: Iterable[Event]) -> bytes:
        """The bytes a burst adds to the stream.

        Raises ProxyError when the turn fails before anything was written: the client can still
        get a status of its own.
        """
        out: list[bytes] = []
        answer = self.answer
        for event in burst:
            if type(event) is TextDelta and (message := answer.message) is not None:
                if text := event.text:
                    message.texts.append(text)
                    if message is not self._message:
                        self._render_delta(message)
                    out.append(self._delta % (self._number, _encode(text)))
                    self._number += 1
            elif not answer.ended:
                out.append(self._framed(answer.feed(event)))
                if answer.error is not None and not answer.started:
                    raise ProxyError(answer.error)
        return b"".join(out)

    def keepalive(self) -> bytes:
        """An event for a long silence. It takes a number, so nothing may overtake it.

        A stream that has not begun begins with it: from then on a failure is part of the stream.
        """
        if self.finished:
            return b""
        return self._framed([*self.answer.begin(), {"type": "keepalive"}])

    def whole(self, items: Iterable[dict[str, Any]]) -> bytes:
        """A stream of items that are there at once, from its beginning to its end."""
        return self._framed(self.answer.whole(items))

    def fail(self, failure: Failure) -> bytes:
        """How a stream ends that can no longer be refused with a status of its own."""
        return self._framed(self.answer.fail(failure))

    def result(self) -> Failure | None:
        """The failure that the stream ended with, if it did."""
        if not self.finished:
            raise UnfinishedTurnError
        return self.answer.error

    def _before(self, kind: str) -> bytes:
        """What stands before the JSON of an event of a kind."""
        return b""

    def _framed(self, events: Sequence[dict[str, Any]]) -> bytes:
        out: list[bytes] = []
        for event in events:
            kind = event["type"]
            if kind == "error" and not self._error_after_failure:
                continue
            numbered = {"type": kind, "sequence_number": self._number} | event
            self._number += 1
            out += (self._before(kind), _encode(numbered), self._after)
        if events and self.answer.ended:
            out.append(self._end)
        return b"".join(out)

    def _render_delta(self, message: Message) -> None:
        event = text_delta(message.place, "")
        kind = event.pop("type")
        head = self._before(kind) + b'{"type":%b,"sequence_number":' % _encode(kind)
        before, after = _encode(event)[1:].replace(b"%", b"%%").rsplit(b'"delta":""', 1)
        self._message = message
        self._delta = b'%b%%d,%b"delta":%%b%b%b' % (head, before, after, self._after)


class ResponsesSse(_Stream):
    """The stream as server-sent events."""

    _after = b"\n\n"
    _end = b"data: [DONE]\n\n"

    def _before(self, kind: str) -> bytes:
        return b"event: %b\ndata: " % kind.encode()


class ResponsesMessages(_Stream):
    """The stream as messages of a socket, each ended by a line break: JSON has none of its own.

    What follows the last event would be taken for the next answer, so nothing does.
    """

    _after = b"\n"
    _error_after_failure = False
