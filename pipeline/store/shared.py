"""A store in a file that several processes write to, each behind its callers' back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pipeline.loose_json import Json
from pipeline.store.responses import ResponseStore, StoredResponse


class SharedStore:
    """What one process keeps is found by all: a miss counts once the others have written."""

    def __init__(self, store: ResponseStore, written: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._written = written
        """Waits until the others have written what they were to keep."""

    def put(self, stored: StoredResponse) -> None:
        self._store.put(stored)

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        found = await self._store.get(owner, response_id)
        if found is None:
            await self._written()
            found = await self._store.get(owner, response_id)
        return found

    async def delete(self, owner: str, response_id: str) -> bool:
        if await self.get(owner, response_id) is None:
            return False
        return await self._store.delete(owner, response_id)

    async def items(self, owner: str, item_ids: Sequence[str]) -> dict[str, Json]:
        found = await self._store.items(owner, item_ids)
        if not found.keys() >= set(item_ids):
            await self._written()
            found = await self._store.items(owner, item_ids)
        return found

    async def until_written(self) -> None:
        await self._store.until_written()
