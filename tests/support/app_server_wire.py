"""A connection to an app-server whose other side is the test."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from sources.app_server.protocol.client import AppServerClient
from sources.app_server.transport.transport import TransportClosedError


class Wire:
    """The other side of a connection: remembers what was sent, says what it is told to say."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.open = True
        self.on_send: Callable[[dict[str, Any]], Iterable[Any]] = lambda _: ()
        """What is said to a message that was sent."""
        self.gate = trio.Event()
        """While it is not set, nothing can be sent: the pipe is full."""
        self.gate.set()
        self._said: deque[list[bytes]] = deque()
        self._news = trio.Event()

    def say(self, *messages: Any) -> None:
        """Let messages arrive, all in one read, written as Codex writes them."""
        self._said.append(
            [json.dumps(message, separators=(",", ":")).encode() for message in messages]
        )
        self._news.set()

    def hang_up(self) -> None:
        self.open = False
        self._news.set()

    async def send(self, message: bytes) -> None:
        await trio.lowlevel.checkpoint()
        await self.gate.wait()
        if not self.open:
            raise TransportClosedError("nobody is there")
        self.sent.append(json.loads(message))
        if answers := list(self.on_send(self.sent[-1])):
            self.say(*answers)

    async def receive(self) -> list[bytes]:
        while not self._said:
            if not self.open:
                raise TransportClosedError("it hung up")
            self._news = trio.Event()
            await self._news.wait()
        await trio.lowlevel.checkpoint()
        return self._said.popleft()

    def send_now(self, message: bytes) -> bool:
        return False

    def memory(self) -> int | None:
        return None

    async def aclose(self) -> None:
        self.open = False


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Wire, AppServerClient]]:
    wire = Wire()
    client = AppServerClient(wire)
    with trio.fail_after(2000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            yield wire, client
            nursery.cancel_scope.cancel()
