"""An app-server that the parent runs, and what each worker is told of it."""

from __future__ import annotations

from contextlib import suppress

import trio

from pipeline.workers.line import Line, LineCutError
from sources.app_server.client import AppServerClient
from sources.app_server.listening_child import ListeningChild
from sources.app_server.supervisor import AppServer


class Hosted:
    """A life of the app-server ends when it was replaced and no worker uses it any more."""

    def __init__(self, number: int, server: AppServer) -> None:
        self._number = number
        self.server = server

    async def keep_told(self, line: Line) -> None:
        """Tell a worker where the app-server is, whenever that changes."""
        known: object = None
        async with trio.open_nursery() as uses:
            while True:
                leading = self.server.leading
                if leading is not None and leading != known:
                    client, child = leading
                    assert isinstance(child, ListeningChild)  # noqa: S101
                    client.enter()  # before anything can happen: this life now has one more user
                    uses.start_soon(self._used, client, child.address, line)
                known = leading
                await self.server.until_changed()
                if self.server.leading is None:
                    reason, last_words = self.server.problem, self.server.last_words
                    line.tell("lost", server=self._number, reason=reason, last_words=last_words)

    async def _used(self, client: AppServerClient, address: str, line: Line) -> None:
        try:
            with suppress(LineCutError):
                await line.ask("use", server=self._number, address=address)
        finally:
            client.leave()
