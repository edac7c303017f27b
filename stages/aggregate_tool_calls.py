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
from stages.tool_calls.aggregator import AggregatorLimitError, ToolCallAggregator
from stages.tool_calls.scanner import Block, BlockScanner, Piece

INCOMPLETE_REASONS = frozenset({"failed", "length", "max_output_tokens", "max_tokens"})


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
        self._item_id = ""

    def begin(self, turn: Turn) -> None:
        self._turn = turn
        self._aggregator = ToolCallAggregator(turn.tools)
        # Without tools and without a mode asked for, the text is the client's own to read.
        asked = (turn.output_mode or self._output_mode) != "auto" and self._policy == "call"
        if turn.tools or asked:
            self._scanner = BlockScanner(self._aggregator.text_patterns)

    def feed(self, event: Event) -> Sequence[Event]:
        try:
            match event:
                case TextDelta() if self._scanner is not None:
                    return self._text(self._scanner, event)
                case ToolCall():
                    return [*self._stop_scanning(event.at), *self._structured(event)]
                case ToolCallFragment():
                    return [*self._stop_scanning(event.at), *self._fragment(event)]
                case ResponseEnd() | Failed():
                    return [*self._flush(event.at), *self._finish(event), event]
                case TurnEnd():
                    return self._end(event)
                case _:
                    return (event,)
        except AggregatorLimitError as limit:
            return self._fail(f"{limit}; ask for less in one turn", "too_much_output", event.at)

    def close(self) -> Sequence[Event]:
        return self._flush(0.0)

    # -- structured ------------------------------------------------------------------------------

    def _structured(self, event: ToolCall) -> Sequence[Event]:
        if self._policy == "fail" and event.name not in self._turn.tool_names:
            return self._fail_unknown(event.name, event.at)
        call = self._aggregator.add(event)
        if call is None:
            return self.fold(event, "the same call again")
        return (event,) if call is event else self.swap(event, call)

    def _fragment(self, event: ToolCallFragment) -> Sequence[Event]:
        self._aggregator.ingest((event,))
        ready = self._aggregator.take_ready(event.choice, at=event.at)
        self.fold(event, "a piece of a call")
        return self.make(*ready) or self.make(CallProgress(choice=event.choice, at=event.at))

    def _finish(self, event: Event, *, complete: bool = True) -> Sequence[Event]:
        """The response is over: calls without a last word are whole, if the response is."""
        complete = complete and not isinstance(event, Failed)
        lost = self._aggregator.finish(event.choice, complete=complete)
        ready = self.make(*self._aggregator.take_ready(event.choice, at=event.at))
        if lost and complete:
            declared = ", ".join(sorted(self._turn.tool_names)) or "none"
            return [
                *ready,
                *self._fail(
                    "the backend sent a tool call without a name, and the declared tools "
                    f"({declared}) do not tell which one is meant",
                    "tool_call_without_name",
                    event.at,
                ),
            ]
        return ready

    def _end(self, event: TurnEnd) -> Sequence[Event]:
        cut_off = event.reason in INCOMPLETE_REASONS
        had_open = cut_off and any(
            not record.complete for record in self._aggregator.snapshot(event.choice)
        )
        out = [*self._flush(event.at), *self._finish(event, complete=not cut_off)]
        if self.done:
            return out
        if had_open:
            return [*out, *self.swap(event, evolve(event, call_incomplete=True))]
        return [*out, event]

    # -- text ------------------------------------------------------------------------------------

    def _text(self, scanner: BlockScanner, event: TextDelta) -> Sequence[Event]:
        released: Sequence[Event] = ()
        if event.item_id != self._item_id:
            released = self._flush(event.at)  # no block spans two messages
            self._item_id = event.item_id
        held_before = scanner.holding
        pieces = scanner.feed(event.text)
        if not held_before and not scanner.holding and pieces == [event.text]:
            return [*released, event]
        self.fold(event, "may be part of a call")
        out = [*released, *self._emit(pieces, event)]
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
            return self._fail_unknown(call.name, event.at)
        origin = block.pattern.name
        return self.make(
            self._aggregator.add_written(call, origin, choice=event.choice, at=event.at)
        )

    def _flush(self, at: float) -> Sequence[Event]:
        """Release what was held: nothing more can be added to it."""
        if self._scanner is None or not self._scanner.holding:
            return ()
        return self._emit(self._scanner.close(), TextDelta("", item_id=self._item_id, at=at))

    def _stop_scanning(self, at: float) -> Sequence[Event]:
        released = self._flush(at)
        self._scanner = None
        return released

    # -- failing ---------------------------------------------------------------------------------

    def _fail_unknown(self, name: str, at: float) -> Sequence[Event]:
        declared = ", ".join(sorted(self._turn.tool_names)) or "none"
        return self._fail(
            f"the model called the tool {name!r}, which the request does not declare "
            f"(it declares: {declared})",
            "unknown_tool",
            at,
        )

    def _fail(self, message: str, code: str, at: float) -> Sequence[Event]:
        self.done = True
        failure = Failure(message, status=502, type="server_error", code=code)
        return self.make(Failed(failure, at=at), TurnEnd("failed", at=at))
