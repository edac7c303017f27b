"""Chat Completions as server-sent events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event, TextDelta
from sinks.answer import UnfinishedTurnError
from sinks.chat.answer import ChatAnswer, ChatOptions, Part, call_object

_encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"


class ChatSse:
    """Bursts in, bytes out: role, content and calls, one finish per choice, usage, `[DONE]`.

    Everything of a chunk but its delta is rendered once per answer, and nothing comes after
    `[DONE]`.
    """

    def __init__(self, options: ChatOptions) -> None:
        self.answer = ChatAnswer(options)
        self.finished = False
        self._options = options
        head = _encode(
            {
                "id": options.response_id,
                "object": "chat.completion.chunk",
                "created": options.created,
                "model": options.model,
            }
        )
        self._head = b"data: " + head[:-1]
        self._prefixes = [
            self._head + b',"choices":[{"index":%d,"delta":' % index
            for index in range(options.choices)
        ]
        self._before_text = [b""] * options.choices
        """What stands before a text of each choice; empty until the choice has begun."""
        self._ended = False
        self._failure: Failure | None = None

    @property
    def call_ids(self) -> tuple[str, ...]:
        return self.answer.call_ids

    def feed(self, burst: Iterable[Event]) -> bytes:
        """The bytes a burst adds to the stream.

        Raises ProxyError when the turn fails before anything was written: the client can still
        get a status of its own.
        """
        if self.finished:
            return b""
        out: list[bytes] = []
        before_text = self._before_text
        for event in burst:
            if type(event) is TextDelta and (before := before_text[event.choice]):
                out += (before, _encode(event.text), b'},"finish_reason":null}]}\n\n')
            elif self._other(event, out):
                break
        return b"".join(out)

    def keepalive(self) -> bytes:
        """A comment, which clients skip."""
        return b"" if self.finished else PING

    def fail(self, failure: Failure) -> bytes:
        """How a stream that has begun reports a failure: nothing can follow."""
        if self._ended:
            return b""
        self.finished = self._ended = True
        self._failure = failure
        return b"data: %b\n\n%b" % (_encode(failure.body()), DONE)

    def result(self) -> Failure | None:
        """The failure that the stream ended with, if it did."""
        if not self.finished:
            raise UnfinishedTurnError
        return self._failure

    def _other(self, event: Event, out: list[bytes]) -> bool:
        """Write any other event; whether the stream ends with it."""
        for part in self.answer.parts(event):
            self._begin(event.choice, out)
            out.append(self._chunk(event.choice, part))
        error = self.answer.error
        if error is not None:
            if not any(self._before_text):
                self.finished, self._failure = True, error
                raise ProxyError(error)
            out.append(self.fail(error))
        elif self.answer.ended:
            self._end(out)
        return self.finished

    def _begin(self, index: int, out: list[bytes]) -> None:
        if not self._before_text[index]:
            self._before_text[index] = self._prefixes[index] + b'{"content":'
            out += (self._prefixes[index], b'{"role":"assistant"},"finish_reason":null}]}\n\n')

    def _chunk(self, index: int, part: Part) -> bytes:
        finish: str | None = None
        delta: dict[str, Any] = {}
        match part:
            case ("finish_reason", finish):
                pass
            case ("tool_calls", call) if self._options.legacy_functions:
                delta = {"function_call": call_object(call)["function"]}
            case ("tool_calls", call):
                delta = {"tool_calls": [{"index": call.index} | call_object(call)]}
            case (key, text):
                delta = {key: text}
        prefix = self._prefixes[index]
        return b'%b%b,"finish_reason":%b}]}\n\n' % (prefix, _encode(delta), _encode(finish))

    def _end(self, out: list[bytes]) -> None:
        self.finished = self._ended = True
        if self._options.declares_tools or self.answer.calls:
            telemetry = {
                "tool_call_count": len(self.answer.calls),
                "tool_call_truncated": self.answer.truncated,
                "stop_after_tools_mode": self._options.cut_mode,
            }
            out += (b": ", _encode(telemetry), b"\n\n")
        if self._options.include_usage:
            usage = _encode(self.answer.usage())
            out += (self._head, b',"choices":[],"usage":', usage, b"}\n\n")
        out.append(DONE)
