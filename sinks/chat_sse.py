"""Chat Completions as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec

from pipeline.errors import Failure, ProxyError
from pipeline.events import Burst, Event, TextDelta, Usage
from sinks.chat import ChatAnswer, ChatChoice, ChatOptions, Part, UnfinishedTurnError, call_object
from sinks.feeding import Fed

_encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"


class ChatSseEncoder:
    """Bursts in, bytes out: role, content and calls, one finish per choice, usage, `[DONE]`.

    Everything of a chunk but its delta is rendered once per answer, and nothing comes after
    `[DONE]`.
    """

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self.answer = ChatAnswer(options)
        head = msgspec.json.encode(
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
        self._text_prefixes = [prefix + b'{"content":' for prefix in self._prefixes]
        self._started = False
        self.finished = False
        self.error: Failure | None = None
        """What the stream told the client went wrong."""

    @property
    def done(self) -> bool:
        """Whether `[DONE]` has been said: a stream that failed before it began has not."""
        return self.finished and self._started

    def encode(self, events: Iterable[Event]) -> bytes:
        """The bytes a burst adds to the stream.

        Raises ProxyError when the turn fails before anything was written: the client can still
        be told with a status of its own.
        """
        out: list[bytes] = []
        choices = self.answer.choices
        for event in events:
            if self.finished:
                break
            choice = choices[event.choice]
            if type(event) is TextDelta and choice.started and not self._options.write_xml:
                prefix = self._text_prefixes[event.choice]
                out += (prefix, _encode(event.text), b'},"finish_reason":null}]}\n\n')
            else:
                self._other(event, choice, out)
        return b"".join(out)

    def _other(self, event: Event, choice: ChatChoice, out: list[bytes]) -> None:
        if isinstance(event, Usage):
            self.answer.count(event)
            return
        for part in choice.parts(event):
            self._start(event.choice, choice, out)
            out.append(self._chunk(event.choice, self._delta(part)))
        error = self.answer.error
        if error is not None:
            self._fail(ProxyError(error), out)
        elif choice.finish is not None:
            self._start(event.choice, choice, out)
            out.append(self._chunk(event.choice, {}, choice.finish))
            if self.answer.ended:
                self._end(out)

    def _start(self, index: int, choice: ChatChoice, out: list[bytes]) -> None:
        if not choice.started:
            choice.started = self._started = True
            out.append(self._chunk(index, {"role": "assistant"}))

    def _delta(self, part: Part) -> dict[str, Any]:
        match part:
            case ("tool_calls", call):
                if self._options.legacy_functions:
                    return {"function_call": call_object(call)["function"]}
                return {"tool_calls": [{"index": call.index} | call_object(call)]}
            case (key, text):
                return {key: text}

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        prefix = self._prefixes[index]
        return b'%b%b,"finish_reason":%b}]}\n\n' % (prefix, _encode(delta), _encode(finish))

    def _fail(self, error: ProxyError, out: list[bytes]) -> None:
        self.finished = True
        self.error = error.failure
        if not self._started:
            raise error
        out.append(error_frames(error.failure))

    def _end(self, out: list[bytes]) -> None:
        self.finished = True
        if self._options.declares_tools or self.answer.calls:
            telemetry = {
                "tool_call_count": self.answer.call_count,
                "tool_call_truncated": self.answer.truncated,
                "stop_after_tools_mode": self._options.cut_mode,
            }
            out += (b": ", _encode(telemetry), b"\n\n")
        if self._options.include_usage:
            usage = _encode(self.answer.usage())
            out += (self._head, b',"choices":[],"usage":', usage, b"}\n\n")
        out.append(DONE)


def error_frames(failure: Failure) -> bytes:
    """How a stream that has begun tells of its failure: nothing can follow."""
    return b"data: %b\n\n%b" % (_encode(failure.body()), DONE)


class ChatSse(Fed[Failure | None]):
    """Writes the stream through an async function, one write per burst.

    The result is the failure that the stream ended with, if it did.
    """

    def __init__(self, options: ChatOptions, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._encoder = ChatSseEncoder(options)
        self._write = write

    @property
    def answer(self) -> ChatAnswer:
        """The answer as far as it has been written."""
        return self._encoder.answer

    @property
    def finished(self) -> bool:
        return self._encoder.finished

    def keepalive(self) -> bytes:
        """Something for a silence; clients skip it. Nothing, if the stream has ended."""
        return b"" if self._encoder.done else PING

    def fail(self, failure: Failure) -> bytes:
        """The end of a stream that failed outside of its turn; empty if it has ended already."""
        return b"" if self._encoder.done else error_frames(failure)

    async def take(self, burst: Burst) -> None:
        data = self._encoder.encode(burst)
        if data:
            await self._write(data)

    def result(self) -> Failure | None:
        if not self.finished:
            raise UnfinishedTurnError
        return self._encoder.error
