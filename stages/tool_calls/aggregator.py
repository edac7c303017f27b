"""Gathers the pieces of tool calls into whole calls: pure, and of use without the pipeline too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from attrs import Factory, define, evolve, frozen

from pipeline.events import Origin, ToolCall, ToolCallFragment
from pipeline.formats.call_shapes import chat_call, fragments_of, whole_calls_of
from pipeline.formats.use_tool import FindTool, WrittenCall, write_use_tool
from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.turn import Tool
from stages.tool_calls.ids import CallIds
from stages.tool_calls.patterns import DEFAULT_PATTERNS, USE_TOOL, TextPattern
from stages.tool_calls.scanner import Block, BlockScanner

MOST_CALLS: Final = 1_024
LONGEST_ARGUMENTS: Final = 16 * 1024 * 1024
LONGEST_TOGETHER: Final = 64 * 1024 * 1024


class AggregatorLimitError(ValueError):
    """A turn asked for more than one turn may hold in memory."""


@frozen
class ToolCallRecord:
    """A call as far as it is known: its arguments are all that came until now.

    `call_id` is empty until it is certain; once there, it never changes.
    """

    call_id: str
    name: str
    arguments: str
    index: int = 0
    choice: int = 0
    origin: Origin = "structured"
    complete: bool = False

    def to_openai(self) -> dict[str, Any]:
        """The call as Chat Completions writes it."""
        return chat_call(self.call_id, self.name, self.arguments)


@frozen
class Ingested:
    """What one ingestion changed: the touched calls, each with everything known of it."""

    deltas: tuple[ToolCallRecord, ...] = ()

    @property
    def updated(self) -> bool:
        return bool(self.deltas)


@define
class _Call:
    """A call under construction; everything outside sees frozen records."""

    key: str
    index: int
    choice: int
    fallback_id: str
    """Its id if the backend never gives one."""
    origin: Origin = "structured"
    item_id: str = ""
    part: int = -1
    namespace: str | None = None
    call_id: str = ""
    name: str = ""
    parts: list[str] = Factory(list[str])
    length: int = 0
    done: bool = False
    """Its arguments are all there."""
    taken: bool = False
    """It was given out."""
    closed: bool = False
    """Its response is over; a later item with the same handle is another call."""

    def write(self, text: str) -> None:
        self.length += len(text)
        if self.length > LONGEST_ARGUMENTS:
            limit = f"{LONGEST_ARGUMENTS // (1024 * 1024)} MiB"
            raise AggregatorLimitError(f"the arguments of one tool call are longer than {limit}")
        self.parts.append(text)

    def rewrite(self, text: str) -> None:
        self.parts.clear()
        self.length = 0
        self.write(text)

    @property
    def whole(self) -> bool:
        return self.done and bool(self.name) and bool(self.call_id)

    def record(self) -> ToolCallRecord:
        return ToolCallRecord(
            call_id=self.call_id,
            name=self.name,
            arguments="".join(self.parts),
            index=self.index,
            choice=self.choice,
            origin=self.origin,
            complete=self.whole,
        )

    def event(self, at: float) -> ToolCall:
        return ToolCall(
            call_id=self.call_id,
            name=self.name,
            arguments="".join(self.parts) or "{}",
            index=self.index,
            origin=self.origin,
            item_id=self.item_id,
            namespace=self.namespace,
            choice=self.choice,
            at=at,
        )


class ToolCallAggregator:
    """Calls keep their order of creation, their ids and their arguments' very characters.

    Inputs are never changed, arguments never parsed. Choices do not see each other.
    """

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        *,
        ignored: frozenset[str] = frozenset(),
        seed: str = "",
        used_ids: Iterable[str] = (),
    ) -> None:
        """`ignored` names tools whose calls are not the client's.

        Calls without a usable id get one derived from `seed`; `used_ids` are those that earlier
        calls of the conversation have.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._ignored = ignored
        self._unwanted: set[tuple[int, str]] = set()
        self._ids = CallIds(seed, used_ids)
        self._patterns: list[TextPattern] = list(DEFAULT_PATTERNS)
        self._calls: dict[int, list[_Call]] = {}
        self._written = 0

    # -- taking in -------------------------------------------------------------------------------

    def ingest_delta(self, delta: Json, *, choice: int = 0) -> Ingested:
        """Take one streamed message: Responses event, Codex item, or chat delta."""
        touched = self._ingest(fragments_of(delta, choice=choice))
        return Ingested(tuple(call.record() for call in touched))

    def ingest_message(
        self, message: Json, *, choice: int = 0, emit_if_missing: bool = False
    ) -> Ingested:
        """Take a finished message. `emit_if_missing`: calls in its text count, if no others do."""
        calls = whole_calls_of(message, choice=choice)
        touched = self._ingest(
            evolve(c, call_id=c.call_id or self._ids.make(choice)) for c in calls
        )
        if touched or not emit_if_missing or self.has_calls(choice):
            return Ingested(tuple(call.record() for call in touched))
        text = "".join(_texts(message.get("content")))
        found = extract_blocks(text, self._patterns, self._tools.get)
        written = [self._add_written(call, pattern.name, choice) for pattern, call in found]
        return Ingested(tuple(call.record() for call in written))

    def ingest(self, fragments: Iterable[ToolCallFragment]) -> bool:
        """Take pieces of calls, in whatever order they come; whether they were news."""
        return bool(self._ingest(fragments))

    def _ingest(self, fragments: Iterable[ToolCallFragment]) -> list[_Call]:
        """The calls that were touched. No record is made here: that would join the arguments."""
        touched: dict[int, _Call] = {}
        for fragment in fragments:
            call = self._call_for(fragment)
            if call is not None and self._merge(call, fragment):
                touched[id(call)] = call
        return list(touched.values())

    def add(self, call: ToolCall) -> bool:
        """Take a whole call; whether it was news, and not the same call again."""
        entry = next((c for c in self._of(call.choice) if c.call_id == call.call_id), None)
        if entry is None:
            entry = self._create(call.call_id, call.choice)
        if entry.whole:
            return False
        self._ids.use(call.call_id)
        entry.call_id, entry.name, entry.origin = call.call_id, call.name, call.origin
        entry.item_id, entry.namespace = call.item_id, call.namespace
        entry.rewrite(call.arguments)
        entry.done = True
        return True

    def add_written(self, call: WrittenCall, origin: str, *, choice: int = 0) -> None:
        """Take a call that was written as text: it keeps a usable id of its own, or gets one."""
        self._add_written(call, origin, choice)

    def lose(self, key: str, *, choice: int = 0) -> bool:
        """Forget a call that cannot be read; False if it was given in a readable form as well."""
        own = [c for c in self._of(choice) if not c.closed and key in (c.key, c.item_id, c.call_id)]
        if not key or not own:
            return True
        self._keep(choice, [c for c in self._of(choice) if c.whole or c not in own])
        return not any(call.whole for call in own)

    # -- giving out ------------------------------------------------------------------------------

    def take_ready(self, choice: int = 0, *, at: float = 0.0) -> list[ToolCall]:
        """The calls that became whole, once each, none before one that was begun earlier."""
        ready: list[ToolCall] = []
        for call in self._of(choice):
            if call.taken:
                continue
            if not call.whole:
                break
            call.taken = True
            ready.append(call.event(at))
        return ready

    def finish(self, choice: int = 0, *, complete: bool = True) -> list[ToolCallRecord]:
        """The response is over. Complete, or drop and return, the calls still open.

        In a complete response an open call is whole: some backends never say so. A missing name
        is inferred from the declared tools.
        """
        calls = self._of(choice)
        for call in calls:
            call.done = call.done or complete
            if call.done:
                call.name = call.name or self._inferred_name(call.index)
                call.call_id = call.call_id or call.fallback_id
            call.closed = True
        lost = [call.record() for call in calls if not call.whole]
        self._keep(choice, [call for call in calls if call.whole])
        return lost

    def _keep(self, choice: int, calls: list[_Call]) -> None:
        """Keep these calls only, numbered anew; none of those given out changes its number."""
        for index, call in enumerate(calls):
            call.index = index
        self._calls[choice] = calls

    def snapshot(self, choice: int = 0) -> tuple[ToolCallRecord, ...]:
        """Every call of a choice in order of creation, as far as it is known, each with an id."""
        records = [(call, call.record()) for call in self._of(choice)]
        return tuple(evolve(r, call_id=r.call_id or call.fallback_id) for call, r in records)

    def has_calls(self, choice: int | None = None) -> bool:
        """Whether any call was begun, in one choice or in any."""
        return any(self._calls.values()) if choice is None else bool(self._calls.get(choice))

    def reset_turn(self, choice: int | None = None) -> None:
        """Forget the calls of one choice, or of all; registered text patterns stay."""
        self._unwanted.clear()
        self._written = 0
        if choice is None:
            self._calls.clear()
        else:
            self._calls.pop(choice, None)

    # -- text ------------------------------------------------------------------------------------

    @property
    def text_patterns(self) -> tuple[TextPattern, ...]:
        return tuple(self._patterns)

    def register_text_pattern(self, pattern: TextPattern) -> None:
        """Look for one more way of writing calls into text; the same name replaces the old one."""
        self._patterns = [p for p in self._patterns if p.name != pattern.name] + [pattern]

    # -- inside ----------------------------------------------------------------------------------

    def _of(self, choice: int) -> list[_Call]:
        return self._calls.get(choice, [])

    def _create(self, key: str, choice: int) -> _Call:
        calls = self._calls.setdefault(choice, [])
        if len(calls) >= MOST_CALLS:
            raise AggregatorLimitError(f"a turn made more than {MOST_CALLS} tool calls")
        call = _Call(key, len(calls), choice, self._ids.make(choice))
        calls.append(call)
        return call

    def _add_written(self, written: WrittenCall, origin: str, choice: int) -> _Call:
        call = self._create("", choice)
        own = self._ids.accept(written.call_id)
        call.call_id = written.call_id if own else call.fallback_id
        call.name, call.origin = written.name, origin
        call.write(written.arguments)
        call.done = True
        return call

    def _call_for(self, fragment: ToolCallFragment) -> _Call | None:
        """The call a fragment belongs to, made if need be; None if that call is not wanted."""
        calls = self._of(fragment.choice)
        if fragment.call_id:
            for call in calls:
                if call.call_id == fragment.call_id:
                    return call
        if (fragment.choice, fragment.key) in self._unwanted:
            return None
        own = [call for call in calls if call.key == fragment.key and not call.closed]
        if fragment.ordinal >= 0:  # a finished item: its calls in order
            candidates = own[fragment.ordinal : fragment.ordinal + 1]
        elif fragment.name and not fragment.arguments:  # a name for the first call without one
            candidates = [call for call in own if not call.name][:1] or own[-1:]
        else:
            candidates = own[-1:]
        if candidates and _may_belong(candidates[0], fragment):
            return candidates[0]
        call = self._create(fragment.key, fragment.choice)
        call.item_id, call.part = fragment.key, fragment.part
        return call

    def _merge(self, call: _Call, fragment: ToolCallFragment) -> bool:
        """Add what is new; a whole call does not change any more."""
        if call.whole:
            return False
        if fragment.call_id and not call.call_id:
            call.call_id = fragment.call_id
            self._ids.use(fragment.call_id)
        call.name = call.name or fragment.name
        if call.name in self._ignored:
            self._unwanted.add((call.choice, call.key))
            self._keep(call.choice, [c for c in self._of(call.choice) if c is not call])
            return False
        if fragment.whole:
            call.rewrite(fragment.whole)
        elif fragment.arguments:
            call.write(fragment.arguments)
        self._written += len(fragment.whole or fragment.arguments)
        if self._written > LONGEST_TOGETHER:
            limit = f"{LONGEST_TOGETHER // (1024 * 1024)} MiB"
            raise AggregatorLimitError(f"the arguments of a turn's calls are longer than {limit}")
        call.done = call.done or fragment.done
        return True

    def _inferred_name(self, index: int) -> str:
        """The only declared tool, or the one in the call's place: the backend never said."""
        names = list(self._tools)
        if len(names) == 1:
            return names[0]
        return names[index] if index < len(names) else ""


def _may_belong(call: _Call, fragment: ToolCallFragment) -> bool:
    """Whether a fragment of the same item can be a part of this call, and not of the next one."""
    if call.call_id and fragment.call_id:
        return call.call_id == fragment.call_id
    if call.part >= 0 and fragment.part >= 0:
        return call.part == fragment.part
    naming = bool(fragment.name) and not fragment.arguments and not call.name
    return fragment.ordinal >= 0 or not call.done or naming


def _texts(content: object) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    for part in as_list(content):
        yield text_of(part) or text_of(as_json(part).get("text"))


def extract_blocks(
    text: str, patterns: Sequence[TextPattern], find_tool: FindTool = lambda _: None
) -> list[tuple[TextPattern, WrittenCall]]:
    """The calls written in a finished text, in order; malformed ones are not calls."""
    scanner = BlockScanner(patterns)
    pieces = [*scanner.feed(text), *scanner.close()]
    blocks = [piece for piece in pieces if isinstance(piece, Block)]
    calls = [(block.pattern, block.pattern.read(block.text, find_tool)) for block in blocks]
    return [(pattern, call) for pattern, call in calls if call is not None]


def extract_use_tool_blocks(text: str) -> list[WrittenCall]:
    """The `<use_tool>` calls of a finished text."""
    return [call for _, call in extract_blocks(text, (USE_TOOL,))]


def to_obsidian_xml(record: ToolCallRecord | ToolCall) -> str:
    """A call as the `<use_tool>` block that Obsidian Copilot reads."""
    return write_use_tool(record.name, record.arguments)
