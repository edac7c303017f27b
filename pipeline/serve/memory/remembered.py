"""Resolves what a request refers to: earlier responses, stored items, sealed conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from pipeline.errors import Failure, ProxyError, refusal
from pipeline.loose_json import Json, text_of
from pipeline.requests.responses import ResponsesRequest
from pipeline.requests.responses.references import COMPACTIONS, sealed_in, with_opened
from pipeline.serve.memory.sealed import Sealed
from pipeline.serve.memory.sqlite import SqliteStore
from pipeline.serve.memory.stored_response import StoredResponse

LONGEST_CHAIN: Final = 10_000
Withheld: TypeAlias = Mapping[str, str]
"""Sealed reasoning that the client did not request, by the id of its item."""
NOTHING: Final[Withheld] = {}
Find: TypeAlias = Callable[[str, str], Awaitable[StoredResponse | None]]
"""Find the latest state of a response by owner and id."""
RequestT = TypeVar("RequestT", bound=ResponsesRequest)


class Memory:
    """One caller's view of the store; `nearby` is searched first."""

    def __init__(
        self,
        store: SqliteStore,
        find: Find,
        sealed: Sealed,
        owner: str,
        nearby: Mapping[str, StoredResponse] | None = None,
    ) -> None:
        self._store = store
        self._find = find
        self._sealed = sealed
        self.owner = owner
        self._nearby = nearby or {}

    async def resolve(self, request: RequestT) -> tuple[RequestT, list[Json]]:
        """The request with its references resolved, and the conversation before it."""
        earlier = await self.conversation(request.previous_response_id)
        if request.references:
            request = request.resolved(await self._store.items(self.owner, request.references))
        if request.compactions:
            request = request.opened(self._sealed.open_all(request.compactions, self.owner))
        return request, earlier

    async def conversation(self, response_id: str | None) -> list[Json]:
        """The conversation up to a response, that response included."""
        parts: list[Sequence[Json]] = []
        for _ in range(LONGEST_CHAIN):
            if response_id is None:
                break
            found = self._nearby.get(response_id) or await self._find(self.owner, response_id)
            if found is None:
                raise ProxyError(unknown_response(response_id, "previous_response_id"))
            if found.unfinished:
                raise refusal("previous_response_id", "is not finished yet; wait for its end")
            answered = found.items[len(found.input_items) :]
            cut = [at for at, item in enumerate(answered) if item.get("type") in COMPACTIONS]
            if cut:  # a compacted conversation starts at the compaction
                parts.append(answered[cut[-1] :])
                break
            parts.append(found.items)
            response_id = found.previous
        else:
            raise refusal(
                "previous_response_id", "has too many predecessors; send the conversation"
            )
        return self._opened([item for part in reversed(parts) for item in part])

    def _opened(self, items: list[Json]) -> list[Json]:
        """The items with compactions replaced by what they stand for."""
        contents = sealed_in(items)
        opened = self._sealed.open_all(contents, self.owner)
        if not opened.keys() >= set(contents):
            raise refusal("previous_response_id", "has a compaction that cannot be decrypted")
        return list(with_opened(items, opened))

    async def keep(
        self, request: ResponsesRequest, response: dict[str, Any], withheld: Withheld = NOTHING
    ) -> None:
        """Store the current state of a response, if the request says so."""
        if request.store:
            await self._store.put(self.stored(request, response, withheld))

    def stored(
        self, request: ResponsesRequest, response: dict[str, Any], withheld: Withheld = NOTHING
    ) -> StoredResponse:
        return StoredResponse(
            text_of(response.get("id")),
            self.owner,
            response,
            tuple(request.input_items()),
            request.previous_response_id,
            withheld,
        )


def unknown_response(response_id: str, param: str | None = None) -> Failure:
    code = "previous_response_not_found" if param else "not_found"
    return Failure(
        f"the response {response_id!r:.100} was not found; it may have been deleted or expired",
        status=404,
        type="invalid_request_error",
        code=code,
        param=param,
    )
