"""A conversation in the form that backends accept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from pipeline.errors import refusal
from pipeline.loose_json import Json

NO_OUTPUT: Final = "[no output]"
"""The output that is sent to the model for a call without one.

OpenAI rejects a call without an output. A chat whose tool loop was stopped has such calls, and its
user should not have to start a new chat. Codex itself inserts an output here (`aborted`), other
backends reject the request, so every backend gets the same text.
"""


@frozen
class Conversation:
    """Leading system messages as instructions; everything else as items, in order.

    A later system message is an item of the role `developer`. (Codex silently drops items of the
    role `system`.)
    """

    instructions: str
    items: tuple[Json, ...]


def leading_system(is_system: Sequence[bool], param: str, *, system: bool) -> int:
    """The number of leading system messages.

    ProxyError if there is nothing else and, without `system`, they are left out.
    """
    leading = is_system.index(False) if False in is_system else 0
    if leading == 0 and is_system and not system and all(is_system):
        raise refusal(
            param,
            "contains only system messages, which this server is configured to leave out; send a "
            "user message",
        )
    return leading


class CallIds:
    """Pairs outputs with calls, and makes their ids unique: backends pair by id alone."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        """Calls without an output yet: the unique id, by the client's id."""
        self._answered: set[str] = set()
        self._used: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._used)

    def unique(self, call_id: str) -> str:
        """The same id, or a similar one that is not in use yet."""
        unique = call_id
        while unique in self._used:
            self._repeats[call_id] += 1
            unique = f"{call_id}_{self._repeats[call_id]}"
        self._used.add(unique)
        return unique

    def call(self, call_id: str) -> str:
        """The unique id of a new call."""
        self._open[call_id] = self.unique(call_id)
        return self._open[call_id]

    def output(self, call_id: str, param: str, *, unknown: str) -> str:
        """The unique id of the call that an output answers; ProxyError if there is none."""
        found = self._open.pop(call_id, None)
        if found is None:
            repeated = "a call that already has an output; send one output for each call"
            problem = repeated if call_id in self._answered else unknown
            raise refusal(param, f"is {call_id!r:.100}, the id of {problem}")
        self._answered.add(call_id)
        return found


def with_all_outputs(items: Sequence[Json]) -> Iterator[Json]:
    """The items, with an output added after each burst of calls for every call that has none."""
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
