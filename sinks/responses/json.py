"""Responses as one JSON body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event
from sinks.answer import UnfinishedTurnError
from sinks.responses.answer import ResponsesAnswer
from sinks.responses.options import ResponsesOptions


@frozen
class ResponsesBody:
    """A finished answer: the response object, and the headers that describe its calls."""

    body: dict[str, Any]
    headers: dict[str, str]


class ResponsesJson:
    """Collects a turn into the response that the stream would end with."""

    def __init__(self, options: ResponsesOptions) -> None:
        self.answer = ResponsesAnswer(options)

    @property
    def finished(self) -> bool:
        return self.answer.ended

    @property
    def call_ids(self) -> tuple[str, ...]:
        return self.answer.call_ids

    def feed(self, burst: Iterable[Event]) -> bytes:
        for event in burst:
            self.answer.feed(event)
        return b""

    def whole(self, items: Iterable[dict[str, Any]]) -> bytes:
        """Make a response of items that are there at once."""
        self.answer.whole(items)
        return b""

    def keepalive(self) -> bytes:
        return b""

    def fail(self, failure: Failure) -> bytes:
        return b""

    def result(self) -> ResponsesBody:
        """The finished answer. Raises ProxyError when the turn failed."""
        answer = self.answer
        if answer.error is not None:
            raise ProxyError(answer.error)
        if not answer.ended:
            raise UnfinishedTurnError
        return ResponsesBody(answer.response, answer.headers(answer.options.cut_mode))
