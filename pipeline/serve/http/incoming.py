"""What a client sends of a request, passed to the app without a task or a channel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from hypercorn.trio.task_group import TaskGroup

from pipeline.serve.http.interface import Hear, Message, Write

_handle: Any = import_module("hypercorn.trio.task_group")._handle  # noqa: SLF001  # half unknown


class Incoming:
    """The receiving side of one request. Messages wait until the app listens."""

    def __init__(self, write_piece: Write) -> None:
        self.write_piece = write_piece
        """Sends a piece of a streamed response, without the ASGI calls.

        It does not check the method: a response to HEAD must not be streamed.
        """
        self._early: list[Message] = []
        self._hear: Hear = self._early.append

    async def put(self, message: Message) -> None:
        """Take a message from hypercorn: a part of the body, its end, or that the client left."""
        self._hear(message)

    def listen(self, hear: Hear) -> None:
        """Call `hear` with every message, in order."""
        self._hear = hear
        for message in self._early:
            hear(message)
        self._early.clear()


class Requests(TaskGroup):
    """The tasks of one connection. Each request receives from an `Incoming`.

    A WebSocket receives from hypercorn's channel: it reads its messages when it needs them.
    """

    write_piece: Write

    async def spawn_app(
        self, app: Any, config: Any, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        if scope["type"] != "http":
            return await super().spawn_app(app, config, scope, send)
        incoming = Incoming(self.write_piece)
        self.spawn(  # pyright: ignore[reportUnknownMemberType]
            _handle, app, config, scope, incoming, send, None, None
        )
        return incoming.put
