"""What a client sends of a request, handed to the app without a task or a channel in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

Message = Any
Hear = Callable[[Message], None]
Write = Callable[[bytes], Awaitable[None]]
_handle: Any = import_module("hypercorn.trio.task_group")._handle  # noqa: SLF001  # half unknown


class Incoming:
    """The receiving side of one request. Who serves it listens; what came before that waits."""

    def __init__(self, write_piece: Write) -> None:
        self.write_piece = write_piece
        """Sends a piece of a streamed answer, past what is done for its head and its end.

        It looks at no method: an answer to HEAD must not be streamed.
        """
        self._early: list[Message] = []
        self._hear: Hear = self._early.append

    async def put(self, message: Message) -> None:
        """Take a message of hypercorn's: a part of the body, its end, that the client left."""
        self._hear(message)

    def listen(self, hear: Hear) -> None:
        """Have every message told, in order, as it comes."""
        self._hear = hear
        for message in self._early:
            hear(message)
        self._early.clear()


class Requests:
    """What hypercorn takes for its group of tasks: requests get an `Incoming` to receive from.

    Hypercorn's own channel, and the task that quart-trio reads it in, would be a tenth of what a
    quiet stream takes of memory, and wake up four times for each request.
    """

    def __init__(self, group: Any, write_piece: Write) -> None:
        self._group = group
        self._write_piece = write_piece
        self.spawn: Callable[..., None] = group.spawn

    async def spawn_app(
        self, app: Any, config: Any, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        if scope["type"] != "http":  # a WebSocket is read from as its messages are wanted
            put: Callable[[Message], Awaitable[None]] = await self._group.spawn_app(
                app, config, scope, send
            )
            return put
        incoming = Incoming(self._write_piece)
        self._group.spawn(_handle, app, config, scope, incoming, send, None, None)
        return incoming.put
