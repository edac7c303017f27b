"""One request and its answer, as the log, the metrics and the headers tell of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import trio
from attrs import Factory, define

from pipeline.errors import Failure
from pipeline.ledger import Ledger
from sinks.chat import ChatAnswer

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEALTH: Final = frozenset({"/healthz", "/readyz", "/livez", "/metrics"})


@define
class Exchange:
    """Filled in while a request is served; whoever learns a fact writes it down here."""

    request_id: str
    method: str
    path: str
    started: float = Factory(trio.current_time)
    route: str = "none"
    caller: str = ""
    status: int = 0
    model: str = ""
    stream: bool | None = None
    facts: dict[str, Any] = Factory(dict[str, Any])
    """What else the log line tells."""
    answer: ChatAnswer | None = None
    ledgers: list[Ledger] = Factory(list[Ledger])
    failure: Failure | None = None
    client_left: bool = False
    parsed: float = 0.0
    """When the request had been read and understood."""
    admitted: float = 0.0
    """When its turns could begin."""
    heard: float = 0.0
    """When the backend's first event was read."""
    first_byte: float = 0.0
    nursery: trio.Nursery | None = None
    """The request's own: what runs in it ends when the client leaves."""

    @classmethod
    def of(cls, method: str, path: str, wished_id: str | None) -> Exchange:
        usable = wished_id is not None and _REQUEST_ID.fullmatch(wished_id)
        return cls(wished_id if usable and wished_id else f"req_{uuid4().hex}", method, path)

    def start(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run something as long as the request lives, beyond its handler's return."""
        assert self.nursery is not None, "the request is not being served"  # noqa: S101
        self.nursery.start_soon(work, *arguments)

    def hear(self, at: float) -> None:
        """Note the backend's first event."""
        if not self.heard:
            self.heard = at

    def server_timing(self) -> str:
        """Where the time until now went: our own share, the queue, the backend."""
        now = trio.current_time()
        if not self.admitted:
            return f"proxy;dur={_ms(now - self.started)}"
        heard = self.heard or now
        own = (self.parsed - self.started) + (now - heard)
        queue, backend = self.admitted - self.parsed, heard - self.admitted
        return f"proxy;dur={_ms(own)}, queue;dur={_ms(queue)}, backend;dur={_ms(backend)}"

    def line(self) -> dict[str, Any]:
        """The log line: counts, names and times, and never a word of what was said."""
        now = trio.current_time()
        line: dict[str, Any] = {
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "duration_ms": _ms(now - self.started),
        }
        if self.caller:
            line["key"] = self.caller
        if self.model:
            line |= {"model": self.model, "stream": bool(self.stream)}
        if self.first_byte:
            line["ttft_ms"] = _ms(self.first_byte - self.started)
        line |= self.facts
        if self.answer is not None:
            line |= _told(self.answer)
        if self.client_left:
            line["client_left"] = True
        if self.failure is not None:
            line |= {"error_code": self.failure.code, **_why(self.failure)}
        return line


def _told(answer: ChatAnswer) -> dict[str, Any]:
    calls = [call for choice in answer.choices for call in choice.calls]
    finishes = [choice.finish for choice in answer.choices]
    line: dict[str, Any] = {
        "finish_reason": finishes[0] if len(finishes) == 1 else finishes,
        "has_tool_calls": bool(calls),
        "tool_call_count": len(calls),
        "tool_call_names": [call.name for call in calls],
        "tool_call_ids": [call.call_id for call in calls],
        "tool_call_truncated": answer.truncated,
    }
    if (usage := answer.usage()) is not None:
        line["prompt_tokens"] = usage["prompt_tokens"]
        line["completion_tokens"] = usage["completion_tokens"]
    hidden = [choice.failure for choice in answer.choices if choice.failure and choice.calls]
    if hidden:  # the client has its calls; what failed after them is for the operator
        line |= {"error_after_calls": hidden[0].code, **_why(hidden[0])}
    return line


def _why(failure: Failure) -> dict[str, Any]:
    """What went wrong. A wrong request is quoted in its refusal, so the log names the field."""
    if failure.status == 400:
        return {"error_param": failure.param and failure.param[:100]}
    return {"error": failure.message}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
