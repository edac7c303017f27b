"""What the answers of every API have in common: calls, token counts, headers, a proper end."""

from __future__ import annotations

from pipeline.events import Failed, ToolCall, TurnEnd, Usage


class Answer:
    """The facts of one answer that its log line and its headers give."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        """Every call that was written, in order."""
        self.truncated = False
        """Whether the model made a call that was not forwarded."""
        self._spent: Usage | None = None

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.call_id for call in self.calls)

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Those read and those written, where they are known."""
        if (spent := self._spent) is None:
            return None
        return spent.input_tokens, spent.output_tokens

    def count(self, usage: Usage) -> None:
        """Add what one upstream response has cost."""
        spent = self._spent or Usage(0, 0, 0)
        self._spent = Usage(
            spent.input_tokens + usage.input_tokens,
            spent.output_tokens + usage.output_tokens,
            spent.total_tokens + usage.total_tokens,
            spent.cached_tokens + usage.cached_tokens,
            spent.reasoning_tokens + usage.reasoning_tokens,
        )

    def note_truncation(self, event: Failed | TurnEnd) -> None:
        cut_off = isinstance(event, TurnEnd) and event.call_incomplete
        self.truncated = self.truncated or event.calls_truncated or cut_off

    def headers(self, cut_mode: str) -> dict[str, str]:
        """The headers of an answer in one JSON body."""
        return {
            "x-codex-tool-call-count": str(len(self.calls)),
            "x-codex-tool-call-truncated": str(self.truncated).lower(),
            "x-codex-stop-after-tools-mode": cut_mode,
        }


class UnfinishedTurnError(RuntimeError):
    """The events ended without a TurnEnd."""

    def __init__(self) -> None:
        super().__init__(
            "the events ended without a TurnEnd; a recipe needs its 'guard' stage, or another that "
            "promises an end"
        )
