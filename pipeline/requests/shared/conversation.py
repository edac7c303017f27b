"""A conversation in the form that backends take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from pipeline.loose_json import Json

NO_OUTPUT: Final = "[no output]"
"""What the model is told of a call that never got its output.

OpenAI refuses such a history. It is what a chat looks like whose tool loop was stopped, and its
user should not have to begin a new one; Codex itself makes up an output here (`aborted`), and
other backends refuse the call that has none. So every backend gets the same words.
"""


@frozen
class Conversation:
    """Leading system messages are instructions; everything else is items, in order.

    A system message further down is a developer's item in its place. (Codex loses items whose role
    is `system` without a word.)
    """

    instructions: str
    items: tuple[Json, ...]


class UniqueIds:
    """Ids that differ, whatever came."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._used)

    def of(self, call_id: str) -> str:
        """The same id, or one like it that nobody has yet."""
        unique = call_id
        while unique in self._used:
            self._repeats[call_id] += 1
            unique = f"{call_id}_{self._repeats[call_id]}"
        self._used.add(unique)
        return unique


def with_all_outputs(items: Sequence[Json]) -> Iterator[Json]:
    """The same items, and an output for every call that has none, behind its burst."""
    outputs = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    missing: list[Json] = []
    for item in items:
        if item["type"] == "message":
            yield from missing
            missing.clear()
        elif item["type"] == "function_call" and item["call_id"] not in outputs:
            output = {"type": "function_call_output", "call_id": item["call_id"]}
            missing.append({**output, "output": NO_OUTPUT})
        yield item
    yield from missing
