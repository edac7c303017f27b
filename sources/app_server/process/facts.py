"""What the backend knows of models, servers and the account, asked rarely and remembered."""

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
from sources.app_server.turn.interface import Backend
from sources.app_server.turn.turns import unavailable

TIME_TO_LIVE: Final = 300.0
MOST_PAGES: Final = 20


@frozen
class _Question:
    """What was asked and not waited for to the end."""

    client: AppServerClient
    pending: Pending
    at: float


@define
class BackendFacts:
    """Each fact is asked for once in its time to live, however many want to know at once."""

    backend: Backend
    time_to_live: float = TIME_TO_LIVE
    _known: dict[str, tuple[float, Json]] = Factory(dict[str, tuple[float, Json]])
    _asking: dict[str, trio.Lock] = Factory(dict[str, trio.Lock])
    _open: dict[str, _Question] = Factory(dict[str, _Question])

    async def models(self) -> list[Any]:
        """All its models, all pages of them; `hidden` marks those that it does not advertise."""
        return await self._pages("model/list", {"includeHidden": True})

    async def mcp_servers(self) -> list[Any]:
        """Its MCP servers with their tools. To be able to tell, Codex starts them each time."""
        return await self._pages("mcpServerStatus/list", {"detail": "toolsAndAuthOnly"})

    async def rate_limits(self) -> Json:
        return await self._ask("account/rateLimits/read", {})

    async def account(self) -> Json:
        return await self._ask("account/read", {})

    async def _pages(self, method: str, params: Json) -> list[Any]:
        found: list[Any] = []
        page = await self._ask(method, params)
        for _ in range(MOST_PAGES):  # a backend that never stops turning pages must not hold us
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
        """The answer, or the one that somebody who could not wait so long left under way."""
        left = self._open.get(key)
        try:
            if left is not None and self._still_good(left):
                result = await left.pending.wait()
            else:
                client = (await self.backend.lease()).client

                def begun(pending: Pending) -> None:
                    self._open[key] = _Question(client, pending, trio.current_time())

                result = await client.request(method, params, begun=begun)
        except Exception:  # to be cancelled is none of these
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
