"""One request and its answer, as the log, the metrics and the headers tell of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol
from uuid import uuid4

import trio
from attrs import Factory, define

from pipeline.errors import Failure
from pipeline.events import ToolCall
from pipeline.ledger import Ledger
from pipeline.loose_json import printable

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
LONGEST: Final = 200
"""What a line has room for of a name that the client chose."""
LONGEST_ID: Final = 128
CLIENT_IDS: Final = {
    "session_id": ("session_id", "session-id", "x-session-id"),
    # Newer versions of Codex call a conversation a thread.
    "conversation_id": ("conversation_id", "conversation-id", "thread-id", "thread_id"),
    "subagent": ("x-openai-subagent",),
}
"""What a client may say of itself, under the names of the log and those of the client."""
HEALTH: Final = frozenset({"/healthz", "/readyz", "/livez", "/metrics"})


class Answered(Protocol):
    """What is logged of an answer, on any API."""

    @property
    def calls(self) -> Sequence[ToolCall]: ...

    @property
    def finish_reason(self) -> object: ...

    @property
    def truncated(self) -> bool:
        """Whether the model made a call that was not forwarded."""
        ...

    @property
    def tokens(self) -> tuple[int, int] | None: ...

    @property
    def hidden_failure(self) -> Failure | None:
        """What failed after a call was given out."""
        ...


@define
class Exchange:
    """Filled in while a request is served, wherever a fact becomes known."""

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
    answer: Answered | None = None
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
    stack: AsyncExitStack = Factory(AsyncExitStack)
    """What the request has opened; closed when its answer has been sent, or its client left."""
    release_slot: Callable[[], None] = lambda: None
    """Lets other requests run. Its stack calls this at the latest."""
    sent: Callable[[], None] = lambda: None
    """Called when the client has been sent a whole JSON answer."""

    @classmethod
    def of(cls, method: str, path: str, wished_id: str | None) -> Exchange:
        usable = wished_id is not None and _REQUEST_ID.fullmatch(wished_id)
        return cls(wished_id if usable and wished_id else f"req_{uuid4().hex}", method, path)

    def bug(self) -> Failure:
        """The error for a bug in the server."""
        message = f"Internal server error; see the server log for request id {self.request_id}"
        return Failure(message, code="internal_error")

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
            "path": self.path[:LONGEST],
            "status": self.status,
            "duration_ms": _ms(now - self.started),
        }
        if self.caller:
            line["key"] = self.caller
        if self.model:
            line |= {"model": self.model[:LONGEST], "stream": bool(self.stream)}
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


def client_ids(find: Callable[[str], object]) -> dict[str, str]:
    """What a client says of itself in headers or fields, bounded and printable."""
    found: dict[str, str] = {}
    for fact, names in CLIENT_IDS.items():
        given = next((v for v in map(find, names) if isinstance(v, str) and v.strip()), "")
        if given:
            found[fact] = printable(given.strip(), LONGEST_ID)
    return found


def _told(answer: Answered) -> dict[str, Any]:
    calls = answer.calls
    line: dict[str, Any] = {
        "finish_reason": answer.finish_reason,
        "has_tool_calls": bool(calls),
        "tool_call_count": len(calls),
        "tool_call_names": [call.name for call in calls],
        "tool_call_ids": [call.call_id for call in calls],
        "tool_call_truncated": answer.truncated,
    }
    if answer.tokens is not None:
        line["prompt_tokens"], line["completion_tokens"] = answer.tokens
    if (hidden := answer.hidden_failure) is not None:
        line |= {"error_after_calls": hidden.code, **_why(hidden)}
    return line


def _why(failure: Failure) -> dict[str, Any]:
    """What went wrong. A wrong request is quoted in its refusal, so the log names the field."""
    if failure.status == 400:
        return {"error_param": failure.param and failure.param[:100]}
    return {"error": failure.message}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
