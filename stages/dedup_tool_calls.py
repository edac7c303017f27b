"""Forwards calls of the same name and arguments once."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from pipeline.events import Event, ToolCall
from pipeline.options import flag
from pipeline.stage import Stage


@frozen(slots=False)
class DedupOptions:
    """Whether a call that repeats another is forwarded."""

    tool_block_dedup: bool = flag(
        "PROXY_TOOL_BLOCK_DEDUP",
        False,
        "forward calls of the same name and arguments once",
        stage="dedup",
    )


class DedupToolCalls(Stage):
    """If enabled, no two calls that leave have the same name and arguments, to the letter."""

    wants = frozenset({ToolCall})

    def __init__(self, options: DedupOptions | None = None) -> None:
        super().__init__()
        self._enabled = (options or DedupOptions()).tool_block_dedup
        self._seen: set[tuple[int, str, str]] = set()
        self._next: dict[int, int] = {}

    def feed(self, event: Event) -> Sequence[Event]:
        if not (self._enabled and isinstance(event, ToolCall)):
            return (event,)
        call = (event.choice, event.name, event.arguments)
        if call in self._seen:
            return self.drop(event, "the same name and arguments as a call before")
        self._seen.add(call)
        index = self._next.get(event.choice, 0)
        self._next[event.choice] = index + 1
        return (event,) if index == event.index else self.swap(event, evolve(event, index=index))
