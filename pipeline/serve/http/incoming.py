"""What a client sends of a request, passed to the app without a task or a channel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from pipeline.serve.http.interface import Write

Message = Any
Hear = Callable[[Message], None]
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


class Requests:
    """Hypercorn's task group, except that each request receives from an `Incoming`.

    Hypercorn's own channel, and the task that quart-trio reads it in, take a tenth of
    the memory of a quiet stream, and wake up four times for each request.
    """

    def __init__(self, group: Any, write_piece: Write) -> None:
        self._group = group
        self._write_piece = write_piece
        self.spawn: Callable[..., None] = group.spawn

    async def spawn_app(
        self, app: Any, config: Any, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        if scope["type"] != "http":  # a WebSocket reads its messages when it needs them
            put: Callable[[Message], Awaitable[None]] = await self._group.spawn_app(
                app, config, scope, send
            )
            return put
        incoming = Incoming(self._write_piece)
        self._group.spawn(_handle, app, config, scope, incoming, send, None, None)
        return incoming.put
