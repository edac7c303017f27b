"""Decodes the body of a Responses answer, a stream or one JSON object, to events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event
from pipeline.formats.transcripts import LONGEST_LINE, Record, parse_line
from pipeline.loose_json import Json, as_json, as_list, is_json, is_list, text_of
from sources.decode.http_failures import ADDRESS_HINT, excerpt, upstream_failure
from sources.decode.responses import DONE
from sources.decode.server_sent_events import BYTE_ORDER_MARK, EventStream, TooLongError
from sources.decode.turn_decoder import TurnDecoder, Watcher

_ENDINGS: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


class HttpAnswer:
    """Bytes in, events out; ProxyError if this is not the Responses API at all.

    The first byte decides what the body is: content types are unreliable, but no stream of events
    begins with a brace, and every web page begins with `<`.
    """

    def __init__(
        self,
        decoder: TurnDecoder,
        *,
        hide: Callable[[str], str] = str,
        watch: Watcher | None = None,
        longest: int = LONGEST_LINE,
    ) -> None:
        """`hide` removes secrets from a text before it is shown."""
        self._decoder = decoder
        self._hide = hide
        self._watch = watch
        self._longest = longest
        self._form: Literal["unknown", "stream", "json"] = "unknown"
        self._stream = EventStream(longest)
        self._body = bytearray()
        """All of a JSON body; of a stream only the beginning, to show if it is something else."""
        self._count = 0

    def feed(self, data: bytes, at: float) -> list[Event]:
        """The events that are complete now."""
        if self._form != "stream":
            self._body += data
            if len(self._body) > self._longest:
                raise ProxyError(_too_long(self._longest))
            if self._form == "unknown":
                self._form = self._look()
            if self._form != "stream":
                return []
            data = bytes(self._body)
            del self._body[1000:]
        try:
            found = self._stream.feed(data)
        except TooLongError:
            raise ProxyError(_too_long(self._longest)) from None
        return [event for name, payload in found for event in self._read(name, payload, at)]

    def close(self, at: float) -> list[Event]:
        """The remaining events at the regular end of the body."""
        events: list[Event] = []
        if self._form == "json":
            for message in _messages(self._parsed()):
                events += self._decode(message, at)
        else:
            for name, payload in self._stream.close():
                events += self._read(name, payload, at)
        if not self._decoder.recognized and self._says_something():
            raise ProxyError(self._foreign())
        return events

    def _look(self) -> Literal["unknown", "stream", "json"]:
        start = self._body.removeprefix(BYTE_ORDER_MARK).lstrip()
        if BYTE_ORDER_MARK.startswith(start):
            return "unknown"  # nothing yet, or a part of the byte order mark
        if start.startswith(b"<"):
            raise ProxyError(self._foreign())
        return "json" if start.startswith((b"{", b"[")) else "stream"

    def _parsed(self) -> object:
        try:
            return parse_line(bytes(self._body.removeprefix(BYTE_ORDER_MARK)))
        except ValueError:
            raise ProxyError(self._foreign()) from None

    def _read(self, name: bytes, payload: bytes, at: float) -> Iterable[Event]:
        if payload.strip() == b"[DONE]":
            if not self._decoder.recognized:
                # Streams of other APIs end so too, and would look like an empty answer.
                raise ProxyError(self._foreign())
            return self._decode({"type": DONE}, at)
        try:
            message = parse_line(payload)
        except ValueError:
            problem = "a line that is not JSON"
            self._decoder.unreadable(problem)
            self._show(Record(self._count + 1, None, at, problem), (), [])
            return ()
        return self._decode(_typed(message, name.decode("utf-8", "replace")), at)

    def _decode(self, message: object, at: float) -> Iterable[Event]:
        before = self._decoder.dropped.copy() if self._watch else None
        events = self._decoder.feed(message, at)
        if before is not None:
            reasons = list(self._decoder.dropped - before)
            self._show(Record(self._count + 1, message, at), events, reasons)
        return events

    def _show(self, record: Record, events: Iterable[Event], reasons: list[str]) -> None:
        self._count += 1
        if self._watch is not None:
            self._watch(record, events, reasons)

    def _says_something(self) -> bool:
        """Whether there is more than comments, which a broken stream may consist of."""
        lines = self._body.removeprefix(BYTE_ORDER_MARK).splitlines()
        return any(line.strip() and not line.startswith(b":") for line in lines)

    def _foreign(self) -> Failure:
        beginning = self._hide(self._body[:1000].decode("utf-8", "replace"))
        return upstream_failure(
            "the backend answered with something that is not the Responses API "
            f"({excerpt(beginning)}); {ADDRESS_HINT}"
        )


def _too_long(longest: int) -> Failure:
    return upstream_failure(f"the backend sent more than {longest} bytes as one message")


def _messages(body: object) -> Iterator[Json]:
    """The stream events for an answer that was not streamed."""
    response = as_json(next(iter(as_list(body)), body))
    if not is_list(response.get("output")):
        yield as_json(_typed(response, ""))
        return
    for index, item in enumerate(response["output"]):
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    ending = _ENDINGS.get(text_of(response.get("status")) or "completed")
    if ending is not None:
        yield {"type": ending, "response": response}


def _typed(message: Any, name: str) -> Any:
    """A message with its type, which some backends put only into the event's name, or omit."""
    if not is_json(message) or "type" in message or "method" in message:
        return message
    error = message.get("error")
    if isinstance(error, str) and error:
        return {**message, "type": "error", "message": error}
    if as_json(error):
        return {**message, "type": "error"}
    return {**message, "type": name} if name else message
