"""Keeps one app-server running: starts it, restarts it, and replaces it when it has grown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

import structlog
import trio
from attrs import Factory, define

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import text_of
from sources.app_server.process.patience import Patience, Pauses
from sources.app_server.protocol.capabilities import Learned, probe
from sources.app_server.protocol.client import AppServerClient, BackendGoneError, BackendSilentError
from sources.app_server.protocol.rpc import RpcError, ServerRequest, thread_of
from sources.app_server.transport.transport import Connect, Transport, TransportClosedError
from sources.app_server.turn.place import Place
from sources.problems import Problems

PRODUCT: Final = "codex-sluice"
NOISE: Final = (
    "account/rateLimits/updated",
    "configWarning",
    "remoteControl/status/changed",
    "thread/readState/changed",
    "thread/started",
    "thread/status/changed",
    "warning",
)
"""Notifications that no client needs; the app-server is asked not to send them."""
TURNS_BETWEEN_CHECKS: Final = 8
"""The memory of the process is checked every so many turns."""

_log: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger(__name__)


class _Life:
    """One process or connection of an app-server, from its start to its end."""

    def __init__(self, server: AppServer) -> None:
        self._server = server
        self._place: Place | None = None
        self._turns = 0
        self._transport: Transport | None = None
        self._client: AppServerClient | None = None
        self.worn = False
        self.over_or_worn = trio.Event()
        self.superseded = trio.Event()
        """Another one takes new turns now."""

    @property
    def memory(self) -> int | None:
        return self._transport.memory() if self._transport is not None else None

    @property
    def transport(self) -> Transport | None:
        return self._transport

    def turn_begins(self) -> None:
        """Count a turn; after enough turns or growth, start a replacement."""
        self._turns += 1
        patience = self._server.patience
        served = patience.most_turns and self._turns >= patience.most_turns
        checks = patience.most_memory and self._turns % TURNS_BETWEEN_CHECKS == 1
        if self.worn or not (served or checks):
            return
        memory = self.memory
        if memory is None:
            return  # not a child process of this server
        grown = patience.most_memory and memory >= patience.most_memory
        if served or grown:
            self._server.counters["replaced"] += 1
            _log.info(
                "app-server will be recycled",
                server=self._server.name,
                turns=self._turns,
                megabytes=memory // 1_000_000,
            )
            self.wear_out()

    def wear_out(self) -> None:
        """Start a replacement, which takes over once it is ready."""
        self.worn = True
        self.over_or_worn.set()

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await self._live(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.over_or_worn.set()

    async def _live(self, nursery: trio.Nursery) -> None:
        server, limit = self._server, self._server.patience.handshake
        last_words = ""
        _log.info("starting app-server", server=server.name)
        try:
            with trio.fail_after(limit):
                self._transport = await server.connect(nursery)
            client = self._client = AppServerClient(self._transport, server.problems)
            client.on_request = self._declined
            nursery.start_soon(client.run)
            await client.handshake(PRODUCT, version(PRODUCT), server.quiet, limit)
            self._place = Place(
                client,
                await probe(client),
                server.workspace,
                nursery,
                sees_files=server.sees_files,
                hides_mcp=server.hides_mcp,
                learned=server.learned.setdefault(client.user_agent, Learned()),
            )
            server.opened(self, self._place)
            _log.info("app-server is ready", server=server.name, version=client.user_agent)
            await self._until_over(client)
            server.problem = client.gone or "it was replaced"
            if client.gone is None:
                _log.info("app-server was replaced", server=server.name, turns=self._turns)
        except TransportClosedError as error:
            server.problem, last_words = str(error), error.last_words
        except (BackendGoneError, BackendSilentError, RpcError) as error:
            server.problem = str(error)
        except OSError as error:
            server.problem = f"{server.name} cannot be started: {error.strerror}"
        except trio.TooSlowError:
            server.problem = f"{server.name} was not ready within {limit:g} s"
        finally:
            server.last_words = self._client.last_words if self._client is not None else last_words
            server.shut(self)
            if self._transport is not None:
                await self._transport.aclose()

    async def _until_over(self, client: AppServerClient) -> None:
        """Until the connection ends or, after a replacement took over, the last turn ends."""
        await _first_of(client.until_gone, self.superseded.wait)
        with trio.move_on_after(self._server.patience.drain):
            await _first_of(client.until_gone, client.until_idle)

    def _declined(self, request: ServerRequest) -> None:
        """Log the kind of a declined request, never its content; late tool calls are expected."""
        late = request.method == "item/tool/call"
        (_log.debug if late else _log.warning)(
            "declined a request of the backend",
            server=self._server.name,
            method=f"{request.method:.60}",
            thread=f"{thread_of(request):.60}",
            turn=f"{text_of(request.params.get('turnId')):.60}",
        )


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait_for(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(wait_for, wait)


@define
class AppServer:
    """One app-server: one address or command, restarted as often as necessary.

    A replacement is ready before the old process stops taking turns.
    """

    name: str
    connect: Connect
    workspace: str
    patience: Patience = Factory(Patience)
    sees_files: bool = False
    hides_mcp: bool = False
    quiet: tuple[str, ...] = NOISE
    """Notifications that the app-server is asked not to send."""
    on_turn: Callable[[], None] = lambda: None
    """Called for every turn, if another process decides about recycling."""
    counters: Counter[str] = Factory(Counter[str])
    problems: Problems = Factory(lambda self: Problems(self.counters, self.name), takes_self=True)
    """Reports unusable messages; they are counted with the rest."""
    problem: str = "it has not been started yet"
    """Why it is not ready, or was not the last time; safe to show to clients."""
    last_words: str = ""
    """The last lines of its stderr before it exited."""
    learned: dict[str, Learned] = Factory(dict[str, Learned])
    """What was observed of each Codex version, by user agent."""
    _leader: tuple[_Life, Place] | None = None
    _life: _Life | None = None
    _changed: trio.Event = Factory(trio.Event)

    @property
    def ready(self) -> bool:
        return self._leader is not None and self._leader[1].client.gone is None

    @property
    def why_not(self) -> str:
        """The problem with its last stderr lines, for operators."""
        return self.problem + (f"; its last words: {self.last_words}" if self.last_words else "")

    @property
    def memory(self) -> int | None:
        """The resident bytes of the process that takes new turns, if this server started it."""
        return self._leader[0].memory if self._leader is not None else None

    @property
    def load(self) -> int:
        return self._leader[1].client.load if self._leader is not None else 0

    async def run(self) -> None:
        """Run and restart until cancelled."""
        try:
            await self._run()
        finally:
            self.problems.close()

    async def _run(self) -> None:
        pauses = Pauses(self.patience)
        async with trio.open_nursery() as lives:
            while True:
                life = self._life = _Life(self)
                lives.start_soon(life.run)
                await life.over_or_worn.wait()
                if not life.worn:
                    self.counters["restarts"] += 1
                    pause = pauses.next()
                    _log.warning(
                        "app-server exited and will be restarted",
                        server=self.name,
                        reason=self.why_not,
                        pause=round(pause, 2),
                    )
                    await trio.sleep(pause)

    async def until_ready(self) -> None:
        while not self.ready:
            await self.until_changed()

    async def until_changed(self) -> None:
        """Until the leading process changes or one exits."""
        if self._changed.is_set():
            self._changed = trio.Event()
        await self._changed.wait()

    async def place(self, patience: float = 30.0) -> Place:
        """A place for a turn, waiting while the app-server starts."""
        if not self.ready:
            with trio.move_on_after(patience):
                await self.until_ready()
        if self._leader is None or not self.ready:
            raise ProxyError(
                Failure(
                    f"the backend is not ready: {self.problem}",
                    status=503,
                    type="server_error",
                    code="server_is_overloaded",
                    retry_after=5.0,
                )
            )
        place = self._leader[1]
        self.turn_begins()
        await place.client.until_calm()
        return place

    def turn_begins(self) -> None:
        """Count a turn on the leading process."""
        self.on_turn()
        if self._leader is not None:
            self._leader[0].turn_begins()

    @property
    def leading(self) -> tuple[AppServerClient, Transport] | None:
        """The connection that takes new turns, and its transport."""
        if self._leader is None or self._leader[0].transport is None:
            return None
        return self._leader[1].client, self._leader[0].transport

    def renew(self) -> None:
        """Connect again, because `connect` leads to another process; running turns may finish."""
        if self._life is not None and not self._life.over_or_worn.is_set():
            self._life.wear_out()

    # -- called by its processes -----------------------------------------------------------------

    def opened(self, life: _Life, place: Place) -> None:
        if self._leader is not None:
            if life.worn:  # another one was ready first
                life.superseded.set()
                return
            self._leader[0].superseded.set()
        self._leader = (life, place)
        self._changed.set()

    def leads(self, life: _Life) -> bool:
        return self._leader is not None and self._leader[0] is life

    def shut(self, life: _Life) -> None:
        if self.leads(life):
            self._leader = None
        self._changed.set()
