"""The backends of the server: Codex app-servers, or a Responses API over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urljoin

import httpx
import msgspec
import structlog
import trio
from attrs import evolve, frozen

from pipeline.config import Settings, backend_options, recorder, responses_api
from pipeline.errors import ProxyError, UsageError
from pipeline.loose_json import Json, as_json, is_list, text_of
from pipeline.stage import Source
from sources.app_server.process.binary import find_codex
from sources.app_server.process.facts import BackendFacts
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.pool import Pool, open_pool
from sources.app_server.protocol.mcp_servers import tools_of
from sources.app_server.turn.source import AppServerSource
from sources.demo.model import ScriptedModel
from sources.demo.provider import scripted_provider
from sources.dump import EventDump
from sources.problems import Problems
from sources.responses_api import ResponsesApiSource, get_list, open_client
from sources.responses_request import ResponsesApi

LOG_IN = (
    "Codex is not logged in. Log in with `codex login` (or, with the Codex that came with this "
    "project, `{codex} login`), or try the server without a login: `serve --demo`"
)
LIST_TIMEOUT: Final = 5.0
"""Seconds that a Responses API may take to list its models."""
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@frozen
class Models:
    """The names of a backend's models."""

    listed: tuple[str, ...] = ()
    """The advertised ones, in the backend's order."""
    unlisted: tuple[str, ...] = ()
    """Further ones that it has but does not advertise."""


class ServerBackend(Protocol):
    """What the server needs from a backend."""

    @property
    def name(self) -> str:
        """Its name, for people."""
        ...

    @property
    def why_not(self) -> str:
        """Why no turn can run now; empty if one can."""
        ...

    @property
    def takes_strict_tools(self) -> bool:
        """Whether it supports `strict` on tools."""
        ...

    @property
    def without_effect(self) -> frozenset[str]:
        """The chat parameters that the backend ignores."""
        ...

    def counters(self) -> Counter[str]: ...

    @property
    def source(self) -> Source:
        """Opens turns."""
        ...

    async def models(self) -> Models:
        """The models that the backend has."""
        ...

    async def mcp_tools(self) -> list[Json]:
        """The tools of the MCP servers that the backend itself runs."""
        ...

    async def check_login(self) -> None:
        """Raise UsageError if the backend is known to have no login."""
        ...


class CodexBackend:
    """Turns on app-servers."""

    takes_strict_tools = False
    without_effect = frozenset({"prompt_cache_key"})  # Codex always uses the thread's id

    def __init__(self, pool: Pool, settings: Settings, name: str, codex: str) -> None:
        self.name = name
        self._pool = pool
        self._settings = settings
        self._codex = codex
        self._dump = _dump(settings)
        self.facts = BackendFacts(pool)
        self.source = AppServerSource(pool, record=partial(recorder, settings), watch=self._dump)

    @property
    def why_not(self) -> str:
        return "" if self._pool.ready else self._pool.why_not

    def counters(self) -> Counter[str]:
        return self._pool.counters()

    async def models(self) -> Models:
        listed: list[str] = []
        unlisted: list[str] = []
        for model in map(as_json, await self.facts.models()):
            shown = unlisted if model.get("hidden") is True else listed
            shown.append(text_of(model.get("id")))
            unlisted.append(text_of(model.get("model")))  # also a valid model name
        return Models(tuple(filter(None, listed)), tuple(filter(None, unlisted)))

    async def mcp_tools(self) -> list[Json]:
        if not self._settings.codex_mcp_servers:
            return []  # a request would start them on a remote app-server
        servers = await self.facts.mcp_servers()
        for server in map(as_json, servers):
            if reason := text_of(server.get("toolsError")):
                name = text_of(server.get("name"))
                _log.warning("an MCP server lists no tools", server=name, reason=f"{reason:.300}")
        return tools_of(servers)

    async def check_login(self) -> None:
        if not self._codex:
            return  # remote app-servers have their own login
        try:
            account = await self.facts.account()
        except ProxyError:
            return  # unknown; turns will fail if there is no login
        if account.get("requiresOpenaiAuth") is True and account.get("account") is None:
            raise UsageError(LOG_IN.format(codex=self._codex))

    def close(self) -> None:
        """Close the dump; the caller closes the pool."""
        if self._dump is not None:
            self._dump.close()


class ResponsesBackend:
    """Turns on a Responses API over HTTP."""

    takes_strict_tools = True
    without_effect = frozenset[str]()

    def __init__(self, api: ResponsesApi, client: httpx.AsyncClient, settings: Settings) -> None:
        self.name = api.url
        self._api = api
        self._client = client
        self._no_list = ""
        """The last problem with listing models, so that it is logged only once."""
        self._dump = _dump(settings)
        self._problems = Problems(backend=api.place)
        self.source = ResponsesApiSource(
            api, client, watch=self._dump, report=self._problems.report
        )

    @property
    def why_not(self) -> str:
        return ""  # the API is only contacted for a turn

    def counters(self) -> Counter[str]:
        return self._problems.counters

    async def models(self) -> Models:
        """The API's list at `models` beside `responses`; many APIs have none."""
        url = urljoin(self._api.url, "models")
        names, problem = list[str](), f"no answer within {LIST_TIMEOUT:g} s"
        with trio.move_on_after(LIST_TIMEOUT):
            names, problem = await self._list(url)
        if problem and problem != self._no_list:
            _log.warning(
                "the backend lists no models; name them in PROXY_MODELS", url=url, reason=problem
            )
        self._no_list = problem
        return Models(tuple(names))

    async def _list(self, url: str) -> tuple[list[str], str]:
        """The model names at a URL, or why there are none."""
        try:
            body: Any = msgspec.json.decode(await get_list(self._api, self._client, url))
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            return [], self._api.without_key(f"{type(error).__name__}: {error}")[:300]
        models = as_json(body).get("data")
        if not is_list(models):
            return [], "the response has no array `data`"
        return [name for model in models if (name := text_of(as_json(model).get("id")))], ""

    async def mcp_tools(self) -> list[Json]:
        return []  # an API has none

    async def check_login(self) -> None:
        return

    def close(self) -> None:
        self._problems.close()
        if self._dump is not None:
            self._dump.close()


def _dump(settings: Settings) -> EventDump | None:
    try:
        return EventDump.from_setting(settings.dump_events)
    except OSError as error:
        raise UsageError(
            f"CODEX_DUMP_SSE={settings.dump_events} cannot be written: {error.strerror}"
        ) from None


@frozen
class Chosen:
    """The app-servers of the settings."""

    options: BackendOptions
    codex: str
    """The Codex that this server starts; empty if all app-servers are remote."""
    name: str
    """Their name, for people."""


@asynccontextmanager
async def choose_codex(settings: Settings, *, demo: bool = False) -> AsyncGenerator[Chosen]:
    """The app-servers of the settings; with `demo`, one on a scripted model, which is started."""
    async with AsyncExitStack() as stack:
        options = backend_options(settings)
        if demo:
            url = await stack.enter_async_context(ScriptedModel().serving())
            options = evolve(
                options, addresses=("stdio",), home=None, overrides=scripted_provider(url)
            )
        elif "stdio" in options.addresses and options.home is None:
            options = evolve(options, home=_default_home())
        codex = find_codex(options.codex) if "stdio" in options.addresses else ""
        yield Chosen(options, codex, _name(options, codex, demo=demo))


@asynccontextmanager
async def open_backend(
    settings: Settings, *, demo: bool = False, chosen: Chosen | None = None
) -> AsyncGenerator[ServerBackend]:
    """Start the backend of the settings; with `demo`, one that needs no login."""
    api = responses_api(settings)
    async with AsyncExitStack() as stack:
        if api is not None and not demo:
            client = await stack.enter_async_context(open_client())
            over_http = ResponsesBackend(api, client, settings)
            stack.callback(over_http.close)
            yield over_http
            return
        if chosen is None:
            chosen = await stack.enter_async_context(choose_codex(settings, demo=demo))
        pool = await stack.enter_async_context(open_pool(chosen.options))
        backend = CodexBackend(pool, settings, chosen.name, chosen.codex)
        stack.callback(backend.close)
        yield backend


def _default_home() -> Path:
    """Where `codex login` stores its login."""
    return Path("~/.codex").expanduser()


def _name(options: BackendOptions, codex: str, *, demo: bool) -> str:
    places = [codex if address == "stdio" else address for address in options.addresses]
    return ", ".join(places) + (" with a scripted model: no login, no network" if demo else "")
