"""What the rest of the server uses of the HTTP layer, and what the HTTP layer needs of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import trio

from pipeline.serve.exchange import Exchange

Write = Callable[[bytes], Awaitable[None]]
"""Sends bytes to the client; the request is cancelled when the client has left."""


class Finishing(Protocol):
    """What one request needs of the app."""

    def finish(self, exchange: Exchange) -> None: ...


class Ending(Protocol):
    """The time limit of the responses that still run."""

    def end(self) -> None: ...


class BackgroundJob(Protocol):
    """A response that is made in the background."""

    @property
    def over(self) -> trio.Event: ...


class App(Finishing, Protocol):
    """What the listener needs of the app, to shut it down."""

    @property
    def stopping(self) -> trio.Event: ...

    @property
    def time(self) -> Ending: ...

    @property
    def jobs(self) -> Mapping[str, BackgroundJob]: ...
