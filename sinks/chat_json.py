"""Chat Completions as one JSON body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from pipeline.errors import ProxyError
from pipeline.events import Burst, Event, Usage
from sinks.chat import ChatAnswer, ChatChoice, ChatOptions, UnfinishedTurnError, call_object
from sinks.feeding import Fed


@frozen
class ChatCompletion:
    """A finished answer: the JSON body, and the headers that tell of its calls."""

    body: dict[str, Any]
    headers: dict[str, str]


class _Message:
    """One choice's message, gathered from the very parts that the stream would send."""

    def __init__(self, choice: ChatChoice) -> None:
        self.choice = choice
        self._texts: dict[str, list[str]] = {}

    def take(self, event: Event) -> None:
        for key, value in self.choice.parts(event):
            if isinstance(value, str):
                self._texts.setdefault(key, []).append(value)

    def body(self, index: int) -> dict[str, Any]:
        calls = self.choice.calls
        content = "".join(self._texts.get("content", []))
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "refusal": None,
        }
        if reasoning := "".join(self._texts.get("reasoning_content", [])):
            message["reasoning_content"] = reasoning
        if calls and self.choice.options.legacy_functions:
            message["function_call"] = call_object(calls[0])["function"]
        elif calls:
            message["tool_calls"] = [call_object(call) for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.choice.finish,
        }


class ChatJson(Fed[ChatCompletion]):
    """Collects a turn into the body that the stream would fold to."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self.answer = ChatAnswer(options)
        self._messages = [_Message(choice) for choice in self.answer.choices]

    @property
    def finished(self) -> bool:
        return self.answer.ended or self.answer.error is not None

    async def take(self, burst: Burst) -> None:
        self.add(burst)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Usage):
                self.answer.count(event)
            else:
                self._messages[event.choice].take(event)

    def result(self) -> ChatCompletion:
        """The finished answer. Raises ProxyError when the turn failed."""
        if self.answer.error is not None:
            raise ProxyError(self.answer.error)
        if not self.answer.ended:
            raise UnfinishedTurnError
        options = self._options
        body = {
            "id": options.response_id,
            "object": "chat.completion",
            "created": options.created,
            "model": options.model,
            "choices": [message.body(index) for index, message in enumerate(self._messages)],
            "usage": self.answer.usage(),
        }
        headers = {
            "x-codex-tool-call-count": str(self.answer.call_count),
            "x-codex-tool-call-truncated": str(self.answer.truncated).lower(),
            "x-codex-stop-after-tools-mode": options.cut_mode,
        }
        return ChatCompletion(body, headers)
