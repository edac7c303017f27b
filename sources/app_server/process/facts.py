"""The backend's models, MCP servers and account, cached."""

from __future__ import annotations

from typing import Any, Final

import trio
from attrs import Factory, define, frozen

from pipeline.errors import ProxyError
from pipeline.loose_json import Json, as_list
from sources.app_server.protocol.client import (
    AppServerClient,
    BackendGoneError,
    BackendSilentError,
    Pending,
)
from sources.app_server.protocol.rpc import RpcError
from sources.app_server.turn.incoming import unavailable
from sources.app_server.turn.interface import Backend

TIME_TO_LIVE: Final = 300.0
MOST_PAGES: Final = 20


@frozen
class _Question:
    """A request whose caller stopped waiting."""

    client: AppServerClient
    pending: Pending
    at: float


@define
class BackendFacts:
    """Each fact is requested once in its time to live, however many callers there are."""

    backend: Backend
    time_to_live: float = TIME_TO_LIVE
    _known: dict[str, tuple[float, Json]] = Factory(dict[str, tuple[float, Json]])
    _asking: dict[str, trio.Lock] = Factory(dict[str, trio.Lock])
    _open: dict[str, _Question] = Factory(dict[str, _Question])

    async def models(self) -> list[Any]:
        """All pages of its models; `hidden` marks those that it does not advertise."""
        return await self._pages("model/list", {"includeHidden": True})

    async def mcp_servers(self) -> list[Any]:
        """Its MCP servers with their tools. Codex starts them for each such request."""
        return await self._pages("mcpServerStatus/list", {"detail": "toolsAndAuthOnly"})

    async def account(self) -> Json:
        return await self._ask("account/read", {})

    async def _pages(self, method: str, params: Json) -> list[Any]:
        found: list[Any] = []
        page = await self._ask(method, params)
        for _ in range(MOST_PAGES):  # bounded: a faulty backend may never end
            found += as_list(page.get("data"))
            cursor = page.get("nextCursor")
            if not cursor:
                break
            page = await self._ask(method, {**params, "cursor": cursor})
        return found

    async def _ask(self, method: str, params: Json) -> Json:
        key = f"{method} {params}"
        async with self._asking.setdefault(key, trio.Lock()):
            at, known = self._known.get(key, (0.0, {}))
            if key in self._known and trio.current_time() - at < self.time_to_live:
                return known
            try:
                result = await self._answer(key, method, params)
            except RpcError as error:
                raise ProxyError(error.failure) from error
            except (BackendGoneError, BackendSilentError) as error:
                raise ProxyError(unavailable(str(error))) from error
            self._known[key] = (trio.current_time(), result)
            return result

    async def _answer(self, key: str, method: str, params: Json) -> Json:
        """The answer, perhaps to a request that an earlier caller stopped waiting for."""
        left = self._open.get(key)
        try:
            if left is not None and self._still_good(left):
                result = await left.pending.wait()
            else:
                client = (await self.backend.lease()).client

                def begun(pending: Pending) -> None:
                    self._open[key] = _Question(client, pending, trio.current_time())

                result = await client.request(method, params, begun=begun)
        except Exception:  # not trio.Cancelled
            self._close(key)
            raise
        self._close(key)
        return result

    def _still_good(self, question: _Question) -> bool:
        recent = trio.current_time() - question.at < self.time_to_live
        return recent and question.client.gone is None

    def _close(self, key: str) -> None:
        if (question := self._open.pop(key, None)) is not None:
            question.client.forget(question.pending)
