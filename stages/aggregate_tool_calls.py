"""Turns every way a model makes a call, structured, streamed or written as text, into ToolCalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import evolve

from pipeline.errors import Failure
from pipeline.events import (
    CallProgress,
    Event,
    Failed,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.stage import Stage
from pipeline.turn import OutputMode, Turn
from stages.drop_mcp_noise import BACKEND_TOOLS
from stages.tool_calls.aggregator import AggregatorLimitError, ToolCallAggregator
from stages.tool_calls.scanner import Block, BlockScanner, Piece

LATE = "came after the turn had failed"
COMPLETE_REASONS = frozenset({"completed", "stop", "end_turn", "tool_calls", "tool_use"})
"""Ends at which a call that has no last word is whole; at any other it was cut off."""


class AggregateToolCalls(Stage):
    """Each call leaves once, whole and numbered in order; all other text leaves untouched.

    Structured calls count first: text is searched only while none has come, and a block in it
    counts only if the client declared its tool (or the policy says otherwise).
    """

    def __init__(
        self,
        unknown_tool_policy: Literal["text", "call", "fail"] = "text",
        output_mode: OutputMode = "auto",
    ) -> None:
        super().__init__()
        self._policy = unknown_tool_policy
        self._output_mode = output_mode
        self._turn = Turn()
        self._aggregator = ToolCallAggregator()
        self._scanner: BlockScanner | None = None
        self._held = TextDelta("")  # the last text: what is held belongs to its message
        self._cut_off = False

    def begin(self, turn: Turn) -> None:
        self._turn = turn
        ignored = BACKEND_TOOLS - turn.tool_names
        self._aggregator = ToolCallAggregator(turn.tools, ignored=ignored)
        # Without tools and without a mode asked for, the text is the client's own to read.
        asked = (turn.output_mode or self._output_mode) != "auto" and self._policy == "call"
        if turn.offered or asked:
            self._scanner = BlockScanner(self._aggregator.text_patterns)

    def skim(self, text: Sequence[TextDelta]) -> bool:
        if self._scanner is not None:
            if not self._scanner.let_pass([delta.text for delta in text]):
                return False
            self._held = text[-1]
        return True

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case TextDelta() if self._scanner is not None:
                return self._text(self._scanner, event)
            case ToolCall() | ToolCallFragment():
                return self._call(event)
            case ResponseEnd() | Failed():
                return self._over(event, complete=isinstance(event, ResponseEnd))
            case TurnEnd():
                return self._over(event, complete=event.reason in COMPLETE_REASONS)
            case _:
                return (event,)

    def close(self) -> Sequence[Event]:
        return self._flush()

    # -- structured ------------------------------------------------------------------------------

    def _call(self, event: ToolCall | ToolCallFragment) -> Sequence[Event]:
        out = [*self._flush(event.at)]
        self._scanner = None
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
        if ready == [event] and self._forwards(event.name):
            return [*out, event]
        self.fold(event, "a piece of a call" if news else "the same call again")
        if news and not ready:
            return [*out, *self.make(CallProgress(choice=event.choice, at=event.at))]
        return [*out, *self._give(ready)]

    def _give(self, calls: Sequence[ToolCall]) -> Sequence[Event]:
        """Calls that became whole, up to one that the policy does not let pass."""
        out: list[Event] = []
        for call in calls:
            if not self._forwards(call.name):
                return [*out, *self._fail_unknown(call.name, call)]
            if call.name not in self._turn.tool_names:
                self.note(f"forwarded a call of {call.name:.80}, which the client did not declare")
            out += self.make(call)
        return out

    def _forwards(self, name: str) -> bool:
        return self._policy != "fail" or name in self._turn.tool_names

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
        return [*out, event]

    # -- text ------------------------------------------------------------------------------------

    def _text(self, scanner: BlockScanner, event: TextDelta) -> Sequence[Event]:
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
        if scanner.in_block and not self.done:
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
        call = block.pattern.read(block.text, self._turn.tool)
        known = call is not None and call.name in self._turn.tool_names
        if call is None or (not known and self._policy == "text"):
            return self.make(evolve(event, text=block.text))
        if not known and self._policy == "fail":
            return self._fail_unknown(call.name, event)
        try:
            self._aggregator.add_written(call, block.pattern.name, choice=event.choice)
        except AggregatorLimitError as limit:
            return self._fail_limit(limit, event)
        return self._give(self._aggregator.take_ready(event.choice, at=event.at))

    def _flush(self, at: float = 0.0) -> Sequence[Event]:
        """Release what was held: nothing more can be added to it."""
        if self._scanner is None or not self._scanner.holding:
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

    def _fail(self, message: str, code: str, cause: Event) -> Sequence[Event]:
        self.done = True
        failure = Failure(message, status=502, type="server_error", code=code)
        return self.make(
            Failed(failure, cause.choice, cause.at),
            TurnEnd("failed", choice=cause.choice, at=cause.at),
        )
