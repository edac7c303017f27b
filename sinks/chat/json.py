"""Chat Completions as one JSON body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from pipeline.errors import Failure, ProxyError
from pipeline.events import Event
from sinks.answer import UnfinishedTurnError
from sinks.chat.answer import ChatAnswer, ChatOptions, call_object


@frozen
class ChatCompletion:
    """A finished answer: the JSON body, and the headers that describe its calls."""

    body: dict[str, Any]
    headers: dict[str, str]


class ChatJson:
    """Collects a turn into the body that the stream would fold to, from the stream's own parts."""

    def __init__(self, options: ChatOptions) -> None:
        self.answer = ChatAnswer(options)
        self._texts: list[dict[str, list[str]]] = [{} for _ in self.answer.choices]

    @property
    def finished(self) -> bool:
        return self.answer.ended or self.answer.error is not None

    @property
    def call_ids(self) -> tuple[str, ...]:
        return self.answer.call_ids

    def feed(self, burst: Iterable[Event]) -> bytes:
        for event in burst:
            for key, value in self.answer.parts(event):
                if isinstance(value, str):
                    self._texts[event.choice].setdefault(key, []).append(value)
        return b""

    def keepalive(self) -> bytes:
        return b""

    def fail(self, failure: Failure) -> bytes:
        return b""

    def result(self) -> ChatCompletion:
        """The finished answer. Raises ProxyError when the turn failed."""
        answer = self.answer
        if answer.error is not None:
            raise ProxyError(answer.error)
        if not answer.ended:
            raise UnfinishedTurnError
        options = answer.options
        body = {
            "id": options.response_id,
            "object": "chat.completion",
            "created": options.created,
            "model": options.model,
            "choices": [self._choice(index) for index in range(options.choices)],
            "usage": answer.usage(),
        }
        return ChatCompletion(body, answer.headers(options.cut_mode))

    def _choice(self, index: int) -> dict[str, Any]:
        choice = self.answer.choices[index]
        texts = {key: "".join(pieces) for key, pieces in self._texts[index].items()}
        message: dict[str, Any] = {
            "role": "assistant",
            "content": texts.get("content") or (None if choice.calls else ""),
            "refusal": None,
        }
        if reasoning := texts.get("reasoning_content"):
            message["reasoning_content"] = reasoning
        if choice.calls and choice.options.legacy_functions:
            message["function_call"] = call_object(choice.calls[0])["function"]
        elif choice.calls:
            message["tool_calls"] = [call_object(call) for call in choice.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": choice.finish,
        }
