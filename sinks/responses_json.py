"""Responses as one JSON body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from pipeline.errors import ProxyError
from pipeline.events import Burst, Event
from sinks.chat import UnfinishedTurnError
from sinks.feeding import Fed
from sinks.responses import ResponsesOptions
from sinks.responses_answer import ResponsesAnswer


@frozen
class ResponsesBody:
    """A finished answer: the response object, and the headers that tell of its calls."""

    body: dict[str, Any]
    headers: dict[str, str]


class ResponsesJson(Fed[ResponsesBody]):
    """Collects a turn into the response that the stream would end with."""

    def __init__(self, options: ResponsesOptions) -> None:
        self.answer = ResponsesAnswer(options)

    @property
    def finished(self) -> bool:
        return self.answer.ended

    async def take(self, burst: Burst) -> None:
        self.add(burst)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            for _ in self.answer.feed(event):
                pass

    def result(self) -> ResponsesBody:
        """The finished answer. Raises ProxyError when the turn failed."""
        answer = self.answer
        if answer.error is not None:
            raise ProxyError(answer.error)
        if not answer.ended:
            raise UnfinishedTurnError
        headers = {
            "x-codex-tool-call-count": str(answer.call_count),
            "x-codex-tool-call-truncated": str(answer.truncated).lower(),
            "x-codex-stop-after-tools-mode": answer.options.cut_mode,
        }
        return ResponsesBody(answer.response, headers)
