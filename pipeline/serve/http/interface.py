"""What the rest of the server uses of the HTTP layer, and what the HTTP layer needs of it.

A request writes bytes, and hears what its client sends and that it left. The rest of the server
imports this module; this module imports nothing of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import trio

from pipeline.stage import Write

__all__ = ["App", "BackgroundJob", "Ending", "Finishing", "Hear", "Message", "Write"]

Message = Any
"""An ASGI message: a part of the body (`http.request`), or that the client left
(`http.disconnect`)."""
Hear = Callable[[Message], None]


class Finishing(Protocol):
    """What one request needs of the app."""

    def finish(self, exchange: Any) -> None: ...


class Ending(Protocol):
    """The turns that still run."""

    def end(self) -> None: ...


class BackgroundJob(Protocol):
    """A response that is made in the background."""

    @property
    def over(self) -> trio.Event: ...


class App(Protocol):
    """What the listener needs of the app, to shut it down."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    @property
    def stopping(self) -> trio.Event: ...

    @property
    def turns(self) -> Ending: ...

    @property
    def jobs(self) -> Mapping[str, BackgroundJob]: ...
