"""What the backend knows of models, servers and the account, asked rarely and remembered."""

from __future__ import annotations

from typing import Any, Final

import trio
from attrs import Factory, define

from pipeline.errors import ProxyError
from pipeline.loose_json import Json, as_list
from sources.app_server.client import BackendGoneError, BackendSilentError
from sources.app_server.place import Backend
from sources.app_server.rpc import RpcError
from sources.app_server.turns import unavailable

TIME_TO_LIVE: Final = 300.0


@define
class BackendFacts:
    """Each fact is asked for once in its time to live, however many want to know at once."""

    backend: Backend
    time_to_live: float = TIME_TO_LIVE
    _known: dict[str, tuple[float, Json]] = Factory(dict[str, tuple[float, Json]])
    _asking: dict[str, trio.Lock] = Factory(dict[str, trio.Lock])

    async def models(self) -> list[Any]:
        """The models on offer, all pages of them."""
        found: list[Any] = []
        page = await self._ask("model/list", {})
        for _ in range(20):  # a backend that never stops turning pages must not hold us
            found += as_list(page.get("data"))
            cursor = page.get("nextCursor")
            if not cursor:
                break
            page = await self._ask("model/list", {"cursor": cursor})
        return found

    async def mcp_servers(self) -> list[Any]:
        return [*as_list((await self._ask("mcpServerStatus/list", {})).get("data"))]

    async def rate_limits(self) -> Json:
        return await self._ask("account/rateLimits/read", {})

    async def account(self) -> Json:
        return await self._ask("account/read", {})

    async def _ask(self, method: str, params: Json) -> Json:
        key = f"{method} {params}"
        async with self._asking.setdefault(key, trio.Lock()):
            at, known = self._known.get(key, (0.0, {}))
            if key in self._known and trio.current_time() - at < self.time_to_live:
                return known
            try:
                place = await self.backend.lease()
                result = await place.client.request(method, params)
            except RpcError as error:
                raise ProxyError(error.failure) from error
            except (BackendGoneError, BackendSilentError) as error:
                raise ProxyError(unavailable(str(error))) from error
            self._known[key] = (trio.current_time(), result)
            return result
