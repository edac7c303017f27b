"""Turns every way a model makes a call, structured, streamed or written as text, into ToolCalls."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from pipeline.errors import Failure
from pipeline.events import (
    CallProgress,
    Event,
    Failed,
    LostCall,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.formats.codex_tools import BACKEND_TOOLS
from pipeline.loose_json import printable
from pipeline.options import flag
from pipeline.stage import Stage
from pipeline.turn import OutputMode, Turn
from stages.tool_calls.aggregator import AggregatorLimitError, ToolCallAggregator
from stages.tool_calls.fences import FenceScanner
from stages.tool_calls.rules import CallRules, UnknownToolPolicy
from stages.tool_calls.scanner import Block, Piece

LONGEST_NAME = 80
LATE = "came after the turn had failed"
COMPLETE_REASONS = frozenset({"completed", "stop", "end_turn", "tool_calls", "tool_use"})
"""Ends at which a call that has no last word is whole; at any other it was cut off."""


@frozen(slots=False)
class AggregateOptions:
    """Which calls count, and whether they are looked for in text."""

    unknown_tool_policy: UnknownToolPolicy = flag(
        "PROXY_UNKNOWN_TOOL_POLICY",
        "text",
        "a call of an undeclared tool: text leaves it in the text it was written in, call forwards "
        "it, fail fails the turn, over a structured one too; a request without tools answered in "
        "obsidian-xml declares none, so there text forwards it as call does",
        stage="calls",
    )
    output_mode: OutputMode = flag(
        "PROXY_OUTPUT_MODE",
        "auto",
        "auto: calls as JSON if the request has tools, else the text untouched; obsidian-xml also "
        "writes <use_tool> blocks into the text, and finds them in the model's text without tools "
        "in the request too",
    )


class AggregateToolCalls(Stage):
    """Each call leaves once, whole and numbered in order; all other text leaves untouched, except
    a code fence around nothing but `<tool_call>` blocks, which is removed with them.

    Structured calls count first: text is searched only while none has come, and a block in it
    counts only if the client declared its tool (or the policy says otherwise). A client that asks
    for `obsidian-xml` and declares no tools describes them in its prompt: there every block counts
    that does not stand in a code fence, as an example does.
    """

    def __init__(self, options: AggregateOptions | None = None) -> None:
        super().__init__()
        options = options or AggregateOptions()
        self._turn = Turn()
        self._rules = CallRules(self._turn, options.unknown_tool_policy, options.output_mode)
        self._aggregator = ToolCallAggregator()
        self._scanner: FenceScanner | None = None
        self._held = TextDelta("")  # the last text: what is held belongs to its message
        self._cut_off = False

    def begin(self, turn: Turn) -> None:
        self._turn = turn
        ignored = BACKEND_TOOLS - turn.tool_names
        self._aggregator = ToolCallAggregator(
            turn.tools, ignored=ignored, seed=turn.seed, used_ids=turn.call_ids
        )
        mode = turn.output_mode or self._rules.output_mode
        rules = self._rules = evolve(self._rules, turn=turn, output_mode=mode)
        if rules.search_text:
            # The scanner knows the rules and not the stage: in a circle they would need the
            # garbage collector.
            unwraps = None if rules.any_name else rules.takes_fence
            self._scanner = FenceScanner(self._aggregator.text_patterns, unwraps)

    def feed_text(self, text: Sequence[TextDelta]) -> Sequence[Event] | None:
        if self._scanner is not None:
            item, choice = self._held.item_id, self._held.choice
            texts = [d.text for d in text if d.item_id == item and d.choice == choice]
            if len(texts) < len(text) or not self._scanner.let_pass(texts):
                return None
            self._held = text[-1]
        return text

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case TextDelta() if self._scanner is not None:
                return self._text(self._scanner, event)
            case ToolCall() | ToolCallFragment():
                return self._call(event)
            case LostCall():
                return self._lost(event)
            case ResponseEnd() | Failed():
                return self._over(event, complete=isinstance(event, ResponseEnd))
            case TurnEnd():
                return self._over(event, complete=event.reason in COMPLETE_REASONS)
            case _:
                return (event,)

    def close(self) -> Sequence[Event]:
        """The input ended without an end: a call that was being written is lost."""
        in_block = self._scanner is not None and self._scanner.in_block
        out = self._flush()
        if self.done:
            return out
        choice, at = self._held.choice, self._held.at
        lost = bool(self._aggregator.finish(choice, complete=False)) or in_block
        return [*out, *self.make(LostCall("cut off", choice=choice, at=at))] if lost else out

    # -- structured ------------------------------------------------------------------------------

    def _call(self, event: ToolCall | ToolCallFragment) -> Sequence[Event]:
        out = [*self._flush(event.at)]
        self._scanner = None
        self._held = TextDelta("", choice=event.choice, at=event.at)
        if self.done:
            return [*out, *self.drop(event, LATE)]
        try:
            news = (
                self._aggregator.add(event)
                if isinstance(event, ToolCall)
                else self._aggregator.ingest((event,))
            )
        except AggregatorLimitError as limit:
            self.drop(event, "over a limit")
            return [*out, *self._fail_limit(limit, event)]
        ready = self._aggregator.take_ready(event.choice, at=event.at)
        if ready == [event] and self._rules.forwards(event.name):
            self._note_forwarded(event.name)
            return [*out, event]
        self.fold(event, "a piece of a call" if news else "the same call again")
        if news and not ready:
            return [*out, *self.make(CallProgress(choice=event.choice, at=event.at))]
        return [*out, *self._give(ready)]

    def _lost(self, event: LostCall) -> Sequence[Event]:
        """A call that cannot be read: the guard lets the turn's end tell of it."""
        if not self._aggregator.lose(event.key, choice=event.choice):
            return self.fold(event, "the same call again")
        out = self._flush(event.at)
        return [*out, *(self.drop(event, LATE) if self.done else (event,))]

    def _give(self, calls: Sequence[ToolCall]) -> Sequence[Event]:
        """Calls that became whole, up to one that the policy does not let pass."""
        out: list[Event] = []
        for call in calls:
            if not self._rules.forwards(call.name):
                return [*out, *self._fail_unknown(call.name, call)]
            self._note_forwarded(call.name, written=call.origin != "structured")
            out += self.make(call)
        return out

    def _note_forwarded(self, name: str, *, written: bool = False) -> None:
        if not self._rules.is_expected(name, written=written):
            shown = printable(name, LONGEST_NAME)
            self.note(f"forwarded a call of {shown}, which the client did not declare")

    def _over(self, event: ResponseEnd | Failed | TurnEnd, *, complete: bool) -> Sequence[Event]:
        """A response or the turn is over: nothing held can grow any more.

        A call without a last word is whole if the response is, and was cut off if it is not.
        """
        in_block = self._scanner is not None and self._scanner.in_block
        self._cut_off = self._cut_off or (in_block and not complete)
        out = [*self._flush(event.at)]
        lost = self._aggregator.finish(event.choice, complete=complete)
        if not self.done:
            out += self._give(self._aggregator.take_ready(event.choice, at=event.at))
        if not self.done and lost and complete:
            out += self._fail_nameless(event)
        if self.done:
            return [*out, *self.drop(event, LATE)]
        self._cut_off = self._cut_off or bool(lost)
        if isinstance(event, TurnEnd) and self._cut_off:
            return [*out, *self.swap(event, evolve(event, call_incomplete=True))]
        if isinstance(event, Failed) and self._cut_off:
            return [*out, *self.swap(event, evolve(event, calls_truncated=True))]
        return [*out, event]

    # -- text ------------------------------------------------------------------------------------

    def _text(self, scanner: FenceScanner, event: TextDelta) -> Sequence[Event]:
        released: Sequence[Event] = ()
        if (event.item_id, event.choice) != (self._held.item_id, self._held.choice):
            released = self._flush(event.at)  # no block spans two messages
        self._held = event
        if self.done:
            return [*released, *self.drop(event, LATE)]
        if scanner.lets_pass(event.text):
            return [*released, event] if released else (event,)
        self.fold(event, "may be part of a call")
        out = [*released, *self._emit(scanner.feed(event.text), event)]
        if (scanner.in_block or scanner.has_call) and not self.done:
            out += self.make(CallProgress(choice=event.choice, at=event.at))
        return out

    def _emit(self, pieces: Sequence[Piece], event: TextDelta) -> Sequence[Event]:
        out: list[Event] = []
        for piece in pieces:
            if self.done:
                break
            if isinstance(piece, str):
                out += self.make(evolve(event, text=piece))
            else:
                out += self._block(piece, event)
        return out

    def _block(self, block: Block, event: TextDelta) -> Sequence[Event]:
        call = self._rules.read(block)
        if call is None:
            if name := self._rules.undeclared_name(block):
                shown = printable(name, LONGEST_NAME)
                self.note(f"left a call of {shown} as text, which the client did not declare")
            return self.make(evolve(event, text=block.text))
        if not self._rules.forwards(call.name):
            return self._fail_unknown(call.name, event)
        try:
            self._aggregator.add_written(call, block.pattern.name, choice=event.choice)
        except AggregatorLimitError as limit:
            return self._fail_limit(limit, event)
        return self._give(self._aggregator.take_ready(event.choice, at=event.at))

    def _flush(self, at: float = 0.0) -> Sequence[Event]:
        """Release what was held: nothing more can be added to it."""
        if self._scanner is None:
            return ()
        return self._emit(self._scanner.close(), evolve(self._held, at=max(at, self._held.at)))

    # -- failing ---------------------------------------------------------------------------------

    def _fail_unknown(self, name: str, cause: Event) -> Sequence[Event]:
        declared = ", ".join(sorted(self._turn.tool_names)) or "none"
        return self._fail(
            f"the model called the tool {name!r}, which the request does not declare "
            f"(it declares: {declared})",
            "unknown_tool",
            cause,
            truncated=False,
        )

    def _fail_nameless(self, cause: Event) -> Sequence[Event]:
        declared = ", ".join(sorted(self._turn.tool_names)) or "none"
        return self._fail(
            "the backend sent a tool call without a name, and the declared tools "
            f"({declared}) do not tell which one is meant",
            "tool_call_without_name",
            cause,
        )

    def _fail_limit(self, limit: AggregatorLimitError, cause: Event) -> Sequence[Event]:
        return self._fail(f"{limit}; ask for less in one turn", "too_much_output", cause)

    def _fail(
        self, message: str, code: str, cause: Event, *, truncated: bool = True
    ) -> Sequence[Event]:
        """End the turn; `truncated` tells that the call was lost, and not refused by policy."""
        self.done = True
        failure = Failure(message, status=502, type="server_error", code=code)
        choice, at = cause.choice, cause.at
        return self.make(
            Failed(failure, choice, at, truncated),
            TurnEnd("failed", truncated, choice=choice, at=at),
        )
