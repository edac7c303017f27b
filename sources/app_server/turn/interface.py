"""What a turn needs of whatever keeps app-servers running."""

from __future__ import annotations

from typing import Protocol

from sources.app_server.turn.kept import KeptThreads
from sources.app_server.turn.place import Bounds, Place


class Backend(Protocol):
    """Whatever keeps app-servers running."""

    @property
    def bounds(self) -> Bounds:
        """How long a turn may take, unless it says otherwise."""
        ...

    @property
    def kept(self) -> KeptThreads:
        """The threads that wait for their follow-ups."""
        ...

    async def lease(self) -> Place:
        """A place on the least loaded one. Raises ProxyError when there is none."""
        ...
