"""A stored response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from pipeline.loose_json import Json, text_of

UNFINISHED: Final = frozenset({"queued", "in_progress"})


@frozen
class StoredResponse:
    """One response with the input it answered. It belongs to the caller that requested it."""

    response_id: str
    owner: str
    response: dict[str, Any]
    """The response object as the client gets it."""
    input_items: tuple[Json, ...]
    """What this request added to the conversation, each with an id."""
    previous: str | None = None
    withheld: Mapping[str, str] = field(factory=dict[str, str])
    """Sealed reasoning that the client did not request, by the id of its item."""

    @property
    def unfinished(self) -> bool:
        """Whether it was not finished yet when it was stored."""
        return self.response.get("status") in UNFINISHED

    @property
    def items(self) -> tuple[Json, ...]:
        """What this response adds to the conversation: the input, then the output."""
        return (*self.input_items, *map(self._whole, self.response.get("output", ())))

    def _whole(self, item: Json) -> Json:
        sealed = self.withheld.get(text_of(item.get("id")))
        return item if sealed is None else {**item, "encrypted_content": sealed}
