"""Keeps one app-server running: starts it, watches it, and starts it again when it ends."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio
from attrs import Factory, define, frozen

from pipeline.errors import Failure, ProxyError
from sources.app_server.capabilities import probe
from sources.app_server.client import AppServerClient, BackendGoneError, BackendSilentError
from sources.app_server.place import Place
from sources.app_server.rpc import RpcError
from sources.app_server.transport import Transport, TransportClosedError

NOISE: Final = (
    "account/rateLimits/updated",
    "configWarning",
    "remoteControl/status/changed",
    "thread/readState/changed",
    "thread/started",
    "thread/status/changed",
    "warning",
)
"""Notifications that say nothing to a client, silenced at the source."""

Connect: TypeAlias = Callable[[trio.Nursery], Awaitable[Transport]]


@frozen
class Patience:
    """How long to wait for a start, and how soon to try again."""

    handshake: float = 30.0
    first_pause: float = 0.25
    longest_pause: float = 15.0
    window: float = 60.0
    """Only ends within this window make the next pause longer: a bad minute is not for life."""


@define
class AppServer:
    """One app-server, always the same address or command, with as many lives as it takes."""

    name: str
    connect: Connect
    workspace: str
    patience: Patience = Factory(Patience)
    counters: Counter[str] = Factory(Counter[str])
    _place: Place | None = None
    _changed: trio.Event = Factory(trio.Event)
    _ends: deque[float] = Factory(deque[float])
    _why_not: str = "it has not been started yet"

    @property
    def ready(self) -> bool:
        return self._place is not None

    @property
    def why_not(self) -> str:
        """Why it is not ready."""
        return self._why_not

    @property
    def load(self) -> int:
        return self._place.client.load if self._place is not None else 0

    async def run(self) -> None:
        """Live, die and live again until cancelled."""
        while True:
            await self._live()
            self.counters["restarts"] += 1
            await trio.sleep(self._pause())

    async def until_ready(self) -> None:
        while self._place is None:
            await self._changed.wait()

    async def place(self, patience: float = 30.0) -> Place:
        """A place for a turn, waited for while the app-server starts."""
        with trio.move_on_after(patience):
            await self.until_ready()
        if self._place is None:
            raise ProxyError(
                Failure(
                    f"the backend is not ready: {self._why_not}",
                    status=503,
                    type="server_error",
                    code="server_is_overloaded",
                    retry_after=5.0,
                )
            )
        return self._place

    async def _live(self) -> None:
        """One life, from the connection to its end."""
        async with trio.open_nursery() as nursery:
            transport: Transport | None = None
            try:
                with trio.fail_after(self.patience.handshake):
                    transport = await self.connect(nursery)
                client = AppServerClient(transport)
                nursery.start_soon(client.run)
                await client.handshake("codex-sluice", "0.1.0", NOISE, self.patience.handshake)
                self._open(Place(client, await probe(client), self.workspace, nursery))
                await client.until_gone()
                self._why_not = client.gone or "the connection ended"
            except (TransportClosedError, BackendGoneError, BackendSilentError, RpcError) as error:
                self._why_not = str(error)
            except OSError as error:
                self._why_not = f"{self.name} cannot be started: {error.strerror}"
            except trio.TooSlowError:
                waited = f"{self.patience.handshake:g} s"
                self._why_not = f"{self.name} did not come up within {waited}"
            finally:
                self._shut()
                if transport is not None:
                    await transport.aclose()
            nursery.cancel_scope.cancel()

    def _open(self, place: Place) -> None:
        self._place = place
        self._changed.set()

    def _shut(self) -> None:
        self._place = None
        self._changed = trio.Event()

    def _pause(self) -> float:
        """Exponential in the number of recent ends, with jitter so that many do not march."""
        now = trio.current_time()
        self._ends.append(now)
        while self._ends[0] < now - self.patience.window:
            self._ends.popleft()
        pause = self.patience.first_pause * 2.0 ** (len(self._ends) - 1)
        return min(pause, self.patience.longest_pause) * random.uniform(0.5, 1.0)  # noqa: S311
