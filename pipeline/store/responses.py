"""Responses that clients may come back to: what is kept of each, and what a store must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import field, frozen

from pipeline.loose_json import Json, text_of

UNFINISHED: Final = frozenset({"queued", "in_progress"})


@frozen
class StoredResponse:
    """One response with the input it answered. It belongs to the caller that asked for it."""

    response_id: str
    owner: str
    response: dict[str, Any]
    """The response object, as a client reads it."""
    input_items: tuple[Json, ...]
    """What this request added to the conversation, each with an id."""
    previous: str | None = None
    withheld: Mapping[str, str] = field(factory=dict[str, str])
    """Sealed reasoning that the client did not ask to see, by the id of its item."""

    @property
    def unfinished(self) -> bool:
        """Whether it was still being made when this was kept."""
        return self.response.get("status") in UNFINISHED

    @property
    def items(self) -> tuple[Json, ...]:
        """What this exchange adds to the conversation: the input, then the whole output."""
        return (*self.input_items, *map(self._whole, self.response.get("output", ())))

    def _whole(self, item: Json) -> Json:
        sealed = self.withheld.get(text_of(item.get("id")))
        return item if sealed is None else {**item, "encrypted_content": sealed}


class ResponseStore(Protocol):
    """Nobody finds what is another's: a wrong owner is as good as a wrong id."""

    async def put(self, stored: StoredResponse) -> None:
        """Store a response, or its newer state. After that every process finds it.

        A store that cannot write says so in the log: the client gets its answer all the same.
        """
        ...

    async def get(self, owner: str, response_id: str) -> StoredResponse | None: ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        ...

    async def items(self, owner: str, item_ids: Sequence[str]) -> dict[str, Json]:
        """Those of the items that are known, by id."""
        ...
