"""An app-server that another process of ours runs, as far as we were told where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from sources.app_server.transport import Transport, TransportClosedError
from sources.app_server.websocket import WebSocketTransport


class SharedCodex:
    """One app-server that moves when it is replaced: connections are made to where it is now."""

    def __init__(self, on_turn: Callable[[], None]) -> None:
        self.on_turn = on_turn
        """Told of every turn: whoever runs the app-server replaces it when it is worn out."""
        self.on_move: Callable[[], None] = lambda: None
        """Told of a new address while there are connections to an old one."""
        self._address = ""
        self._loss: TransportClosedError | None = None
        self._connections: Counter[str] = Counter()
        self._news = trio.Event()

    # -- told by whoever runs it -----------------------------------------------------------------

    async def use(self, address: str) -> None:
        """Connect there from now on. Returns when nothing here needs that address any more."""
        self._address, self._loss = address, None
        self._tell()
        if self._connections.keys() - {address}:
            self.on_move()
        while self._address == address or self._connections[address]:
            await self._news.wait()

    def lose(self, reason: str, last_words: str) -> None:
        """It is gone; another is being started."""
        self._address, self._loss = "", TransportClosedError(reason, last_words)
        self._tell()

    # -- for its supervisor ----------------------------------------------------------------------

    async def connect(self, nursery: trio.Nursery) -> Transport:
        """A connection, waited for while none can be made; TransportClosedError says why not."""
        known = self._loss
        while not self._address:
            await self._news.wait()
            if self._loss is not None and self._loss is not known:
                raise self._loss
        address = self._address
        self._connections[address] += 1
        try:
            connection = await WebSocketTransport.connect(nursery, address)
        except BaseException:
            self._left(address)
            raise
        return _Connection(connection, lambda: self._left(address))

    def _left(self, address: str) -> None:
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


class _Connection:
    """A connection whose end is noted, and told without the address, which is nobody's business."""

    def __init__(self, inner: Transport, left: Callable[[], None]) -> None:
        self._inner = inner
        self._left = left

    def send_now(self, message: bytes) -> bool:
        return self._inner.send_now(message)

    async def send(self, message: bytes) -> None:
        try:
            await self._inner.send(message)
        except TransportClosedError as error:
            raise TransportClosedError("codex app-server closed the connection") from error

    async def receive(self) -> list[bytes]:
        try:
            return await self._inner.receive()
        except TransportClosedError as error:
            raise TransportClosedError("codex app-server closed the connection") from error

    def memory(self) -> int | None:
        return None

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._left()
