"""Decodes one turn of one backend: messages in, events out, in any dialect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from pipeline.events import (
    BackendNotice,
    Event,
    Failed,
    ResponseEnd,
    ResponseEnds,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    ToolOutput,
    TurnEnd,
)
from pipeline.formats.transcripts import Record
from pipeline.loose_json import Json, as_json, is_json, text_of
from sources.decode import legacy, responses, v2
from sources.decode.deltas import Delta
from sources.decode.failures import rpc_failure
from sources.decode.items import ECHO, MIRROR, SILENT, TurnState
from sources.decode.legacy import LegacyState
from sources.problems import Kind, Report, unreported

Dialect: TypeAlias = Literal["v2", "legacy", "responses"]


class Watcher(Protocol):
    """Called with every message and the events it became."""

    def __call__(self, record: Record, events: Iterable[Event], reasons: list[str]) -> None: ...


class _Message(NamedTuple):
    """A classified message: its dialect, its kind and its content."""

    dialect: Dialect
    kind: str
    body: Json
    thread: str = ""
    turn: str = ""


class _Unknown(NamedTuple):
    """A message of no known version: its method or type, if it has one."""

    name: str
    reason: str


class TurnDecoder:
    """Total and tolerant: every message becomes events or a counted drop, never an exception.

    A backend may send everything in two or three dialects at once. The first that shows the turn
    is used for the whole turn; the others are duplicates.
    """

    def __init__(
        self,
        *,
        choice: int = 0,
        known_calls: frozenset[str] = frozenset(),
        raw_items: bool = False,
        report: Report = unreported,
    ) -> None:
        """`raw_items`: raw items will come. `report` is called for messages that cannot be used."""
        self._state = TurnState(
            choice=choice, known_calls=known_calls, report=report, raw_items=raw_items
        )
        self._legacy = LegacyState(self._state)
        self._dialect: Dialect | None = None
        self._thread = self._turn = ""
        self._under_way = False
        self._leftover: list[Event] | None = None
        """Events of a response whose end an earlier answer had not seen."""
        self.recognized = 0
        """The number of messages in a known dialect: 0 means that this is not a transcript."""

    @property
    def dropped(self) -> Counter[str]:
        """Why messages did not become events, and how many."""
        return self._state.dropped

    @property
    def ended(self) -> bool:
        return self._state.ended

    @property
    def raw_items(self) -> bool:
        """Whether calls come as raw items, so that requests to run them are duplicates."""
        return self._state.raw_items

    @raw_items.setter
    def raw_items(self, come: bool) -> None:
        self._state.raw_items = come

    def response_ends(self, *, calls_wait: bool) -> ResponseEnds:
        """What the backend was observed to report; `calls_wait` if its calls wait for outputs.

        Running totals report an end in time only if no call waits: Codex 0.89 goes on by itself.
        """
        if self._state.ends_by == "responses":
            return "told"
        if self._state.ends_by == "totals":
            return "untold" if calls_wait else "told"
        return "untold" if self._state.missed_end else "unknown"

    def resume(self, *, response_open: bool = False) -> None:
        """The turn goes on with the outputs of its calls, in a new answer.

        `response_open`: the end of the response with the calls was not seen. Until it ends, only
        further calls, and text before them, are part of this answer.
        """
        self._state.resume()
        self._under_way = True
        self._leftover = [] if response_open else None

    def feed(self, message: object, at: float = 0.0) -> Sequence[Event]:
        """Decode one message; at is the source's time."""
        events = self._feed(message, at)
        return events if self._leftover is None else self._after_leftover(self._leftover, events)

    def _after_leftover(self, leftover: list[Event], events: Sequence[Event]) -> Sequence[Event]:
        """The events after the end of the response of an earlier answer."""
        for place, event in enumerate(events):
            match event:
                case ResponseEnd() | ToolOutput():  # outputs are recorded when the response is over
                    self._leftover = None
                    return events[place + 1 :]
                case ToolCall() | ToolCallFragment() | Failed() | TurnEnd():
                    self._leftover = None
                    return [*leftover, *events[place:]]
                case _:
                    leftover.append(event)
        return ()

    def _feed(self, message: object, at: float) -> Sequence[Event]:
        if not is_json(message):
            return self._state.problem("unreadable_item", "message", "not an object")
        if self._dialect == "v2" and message.get("method") == v2.TEXT_DELTA:
            # The fast path: nearly every message of a turn is one of these.
            params = as_json(message.get("params"))
            ours = params.get("turnId") == self._turn and params.get("threadId") == self._thread
            if ours and not self._state.ended:
                self.recognized += 1
                return self._state.say(params.get("delta"), params.get("itemId"), at)
        found = _classify(message, self._dialect)
        if isinstance(found, _Unknown):
            kind: Kind = "unknown_event" if found.name else "unreadable_item"
            return self._state.problem(kind, found.name or "message", found.reason)
        if isinstance(found, str):
            self.recognized += found == SILENT
            return self._answer(message, at) if found == "answer" else self._state.drop(found)
        self.recognized += found.kind != responses.DONE  # others end their streams with it too
        if self._state.ended:
            return self._state.drop("after the end of the turn")
        if (stranger := self._foreign(found)) is not None:
            return self._state.drop(stranger)
        try:
            return self._dispatch(found, at)
        except (RecursionError, UnicodeError):
            return self._state.problem("unreadable_item", found.kind, "too deep, or not Unicode")

    def say_all(self, deltas: Sequence[Delta], at: float) -> Sequence[Event] | None:
        """Decode deltas of a running turn; None if each must be decoded by itself."""
        if self._dialect != "v2" or self._state.ended or self._leftover is not None:
            return None
        choice, turn = self._state.choice, self._turn
        said = [
            TextDelta(delta.delta, delta.item_id, choice, at)
            for delta in deltas
            if delta.turn_id == turn and delta.delta
        ]
        if len(said) != len(deltas):
            return None
        self.recognized += len(said)
        self._state.text.delta()
        self._state.speaks()
        return said

    def feed_watched(self, record: Record, at: float, watch: Watcher | None) -> Sequence[Event]:
        """Decode one record, and call the watcher with the result."""
        if watch is None:
            return self._feed_record(record, at)
        before = self.dropped.copy()
        events = self._feed_record(record, at)
        watch(record, events, list(self.dropped - before))
        return events

    def _feed_record(self, record: Record, at: float) -> Sequence[Event]:
        if record.problem is not None:
            return self.unreadable(record.problem)
        return self.feed(record.message, at)

    def unreadable(self, problem: str) -> Sequence[Event]:
        """Count a line that is not a message."""
        return self._state.problem("unreadable_item", "line", problem)

    def _foreign(self, message: _Message) -> str | None:
        """Why a message is not of this turn, if it is not."""
        if message.dialect == "v2" and message.kind == "turn/started" and not self._turn:
            self._turn = text_of(as_json(message.body.get("turn")).get("id"))
            self._thread = message.thread
        if self._thread and message.thread and message.thread != self._thread:
            return "another thread"
        if self._turn and message.turn and message.turn != self._turn:
            return "another turn"
        if self._turn or self._under_way:
            return None
        if message.turn and message.kind == v2.RAW_ITEM:
            self._state.raw_items = True
            return ECHO  # injected history comes back as raw items before the turn starts
        return None

    def _dispatch(self, message: _Message, at: float) -> Sequence[Event]:
        if self._dialect is not None and message.dialect != self._dialect:
            return self._state.drop(MIRROR)
        kind, body = message.kind, message.body
        if message.dialect == "v2":
            events = v2.HANDLERS[kind](self._state, body, at)
        elif message.dialect == "legacy":
            events = legacy.HANDLERS[kind](self._legacy, body, at)
        else:
            events = responses.HANDLERS[kind](self._state, body, at)
        has_content = bool(events) and not isinstance(events[0], BackendNotice)
        if has_content or kind in ("turn/started", "task_started", "turn_started"):
            self._dialect = self._dialect or message.dialect
            self._turn = self._turn or message.turn
            self._thread = self._thread or message.thread
        return events

    def _answer(self, message: Json, at: float) -> Sequence[Event]:
        """An answer to a request. An error before the turn began is the turn's failure."""
        self.recognized += 1
        error = as_json(message.get("error"))
        if not error or self._dialect is not None or self._state.ended:
            return self._state.drop("an answer to a request")
        failed = self._state.fail(lambda: Failed(rpc_failure(error), self._state.choice, at))
        return [*failed, *self._state.end("failed", at)]


def is_known(method: str) -> bool:
    """Whether a known version sends messages of this method."""
    return not isinstance(_classify_method(method, {}), _Unknown)


def _classify(message: Json, dialect: Dialect | None) -> _Message | _Unknown | str:
    """A classified message, or the reason why it has no dialect."""
    method = message.get("method")
    if isinstance(method, str):
        return _classify_method(method, as_json(message.get("params")))
    msg = message.get("msg")
    kind = text_of(as_json(msg).get("type")) or text_of(message.get("type"))
    if kind in legacy.HANDLERS and is_json(msg):
        return _Message("legacy", kind, msg, turn=text_of(message.get("id")))
    v1_error = kind == "error" and (dialect == "legacy" or "codex_error_info" in message)
    if kind in responses.HANDLERS and not v1_error:
        return _Message("responses", kind, message)
    if kind in legacy.HANDLERS:
        return _Message("legacy", kind, message)
    if "id" in message and ("result" in message or "error" in message):
        return "answer"
    if kind.startswith(responses.NOISE) or kind in legacy.NOISE:
        return SILENT
    return _Unknown(kind, f"unknown type: {kind:.60}" if kind else "not a message of a backend")


def _classify_method(method: str, params: Json) -> _Message | _Unknown | str:
    kind = method.removeprefix(legacy.PREFIX)
    # "error" is a method of v2 and, without its prefix, of v1; only v1 wraps a `msg`.
    if kind in legacy.HANDLERS and (kind != method or is_json(params.get("msg"))):
        return _legacy_message(kind, params)
    if method in v2.HANDLERS:
        turn = text_of(params.get("turnId")) or text_of(as_json(params.get("turn")).get("id"))
        return _Message("v2", method, params, text_of(params.get("threadId")), turn)
    if method in v2.NOISE or method.startswith(v2.NOISY_FEATURES) or kind in legacy.NOISE:
        return SILENT
    if kind in legacy.HANDLERS:
        return _legacy_message(kind, params)
    if kind in responses.HANDLERS:
        return _Message("responses", kind, {"type": kind, **params})
    return _Unknown(method, f"unknown method: {method:.60}")


def _legacy_message(kind: str, params: Json) -> _Message:
    msg = as_json(params.get("msg")) or params
    thread, turn = text_of(params.get("conversationId")), text_of(params.get("id"))
    return _Message("legacy", kind, msg, thread, turn)
