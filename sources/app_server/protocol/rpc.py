"""JSON-RPC as the app-server speaks it, without any I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from attrs import Factory, define

from pipeline.errors import Failure
from pipeline.formats.transcripts import parse_line
from pipeline.loose_json import Json, as_json, is_json, text_of
from sources.decode.failures import rpc_failure
from sources.problems import Report, unreported

INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
OVERLOADED: Final = -32001
MOST_COUNTERS: Final = 500
_encode: Final = msgspec.json.Encoder().encode


class RpcError(Exception):
    """The backend answered a request with an error."""

    def __init__(self, method: str, error: Json) -> None:
        self.method = method
        self.code = error.get("code")
        self.message = text_of(error.get("message"))
        self.failure: Failure = rpc_failure(error)
        super().__init__(f"{method}: {self.code} {self.message:.300}")


class Answer(NamedTuple):
    """The answer to a request of this client."""

    id: int
    result: Any = None
    error: Json | None = None


class Notification(NamedTuple):
    """A notification of the backend; `size` is its size in bytes."""

    method: str
    params: Json
    message: Json
    size: int


class ServerRequest(NamedTuple):
    """A request of the backend, with its own id, which needs an answer."""

    id: int | str
    method: str
    params: Json
    message: Json
    size: int


Incoming: TypeAlias = Answer | Notification | ServerRequest


@define
class RpcCore:
    """Numbers requests and classifies incoming messages. Invalid lines are reported and skipped."""

    counters: Counter[str] = Factory(Counter[str])
    report: Report = unreported
    _last_id: int = 0

    def count(self, what: str) -> None:
        """Count something; the number of counters is bounded, because the backend names them."""
        if what not in self.counters and len(self.counters) >= MOST_COUNTERS:
            what = "other"
        self.counters[what] += 1

    def request(self, method: str, params: Json) -> tuple[int, bytes]:
        """A request and its id. No `jsonrpc` member: the app-server uses none."""
        self._last_id += 1
        self.counters[f"sent {method}"] += 1
        return self._last_id, _encode({"id": self._last_id, "method": method, "params": params})

    def notification(self, method: str) -> bytes:
        return _encode({"method": method})

    def result(self, request: ServerRequest, result: Json) -> bytes:
        return _encode({"id": request.id, "result": result})

    def refusal(self, request: ServerRequest, message: str) -> bytes:
        error = {"code": UNKNOWN_METHOD, "message": message}
        return _encode({"id": request.id, "error": error})

    def incoming(self, lines: Iterable[bytes]) -> list[Incoming]:
        """The messages of the lines, in order."""
        return [read for line in lines if (read := self.read(line)) is not None]

    def read(self, line: bytes) -> Incoming | None:
        """The message of a line; an invalid line is reported and gives None."""
        try:
            message = parse_line(line)
        except ValueError:
            self.counters["broken line"] += 1
            self.report("unreadable_item", "line")
            return None
        read = _classify(message, len(line)) if is_json(message) else None
        if read is None:
            self.counters["not a message"] += 1
            self.report("unreadable_item", "message")
        return read


def _classify(message: Json, size: int) -> Incoming | None:
    identity, method = message.get("id"), message.get("method")
    if isinstance(method, str):
        params = as_json(message.get("params"))
        if isinstance(identity, int | str) and not isinstance(identity, bool):
            return ServerRequest(identity, method, params, message, size)
        return Notification(method, params, message, size)
    if type(identity) is int and ("result" in message or "error" in message):
        error = message.get("error")
        return Answer(identity, message.get("result"), as_json(error) if error else None)
    return None


def thread_of(message: Notification | ServerRequest) -> str:
    """The thread of a message, in either dialect; empty if it has none."""
    params = message.params
    thread = text_of(params.get("threadId")) or text_of(params.get("conversationId"))
    return thread or text_of(as_json(params.get("thread")).get("id"))
