"""One of several processes that serve the same address: `python -m pipeline.workers.worker`."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from pipeline.errors import UsageError, only_member
from pipeline.loose_json import Json, text_of
from pipeline.recipes import backend_options
from pipeline.serve import logs
from pipeline.serve.app import Server
from pipeline.serve.door import Chosen, open_door
from pipeline.serve.garbage import look_less_often
from pipeline.serve.running import Among, serving
from pipeline.serve.siblings import Asked, answer_sibling
from pipeline.workers.line import Line, LineCutError
from pipeline.workers.orders import Orders
from sources.app_server.shared import SharedCodex

UNUSABLE = 2


class Worker:
    """Serves until it is told to stop; it ends at once when its parent is gone."""

    def __init__(self, orders: Orders, stream: trio.SocketStream) -> None:
        self._orders = orders
        self._name = str(orders.number)
        self._line = Line(stream, self._answer)
        self._shared = tuple(
            SharedCodex(partial(self._line.tell, "turn", server=number))
            for number in range(orders.children)
        )
        self._server: Server | None = None
        self._stop = trio.Event()
        self._whole = trio.CancelScope()

    async def run(self) -> int:
        """The status to leave with."""
        status = 0
        with self._whole, trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._live_with_the_parent)
                    nursery.start_soon(self._watch, signals)
                    status = await self._serve()
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise only_member(group) from None
        return status

    async def _serve(self) -> int:
        settings = self._orders.settings
        sockets = [socket.socket(fileno=number) for number in self._orders.listeners]
        among = Among(sockets, Asked(self._name, self._ask_all, self._exposition))
        try:
            async with open_door(settings, chosen=self._chosen()) as door:
                await door.check_login()
                async with serving(settings, door=door, among=among) as running:
                    self._server = running.server
                    look_less_often()
                    self._line.tell("ready", pid=os.getpid())
                    await self._stop.wait()
        except UsageError as error:
            await self._line.ask("cannot", reason=str(error))
            return UNUSABLE
        return 0

    def _chosen(self) -> Chosen | None:
        orders = self._orders
        if orders.settings.backend:
            return None  # an API instead of app-servers
        options = evolve(
            backend_options(orders.settings),
            addresses=orders.addresses,
            shared=self._shared,
            workspace=Path(orders.workspace),
        )
        return Chosen(options, orders.codex, orders.backend)

    # -- when to end -----------------------------------------------------------------------------

    async def _live_with_the_parent(self) -> None:
        await self._line.run()
        self._whole.cancel()

    async def _watch(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            self._end()

    def _end(self) -> None:
        """Let answers finish. To end at once is the parent's to say, which then cuts the line.

        A signal may have gone to all processes, so that it is heard of twice.
        """
        if self._server is None:
            self._whole.cancel()
        self._stop.set()

    # -- the line --------------------------------------------------------------------------------

    async def _answer(self, what: str, given: Json) -> object:
        match what:
            case "stop":
                self._end()
            case "use":
                await self._shared[int(given["server"])].use(text_of(given["address"]))
            case "lost":
                words = (text_of(given["reason"]), text_of(given["last_words"]))
                self._shared[int(given["server"])].lose(*words)
            case _ if self._server is not None:
                return await answer_sibling(self._server, self._name, what, given)
            case _:
                pass  # whoever does not serve yet has nothing to tell
        return None

    async def _ask_all(self, what: str, given: Mapping[str, Any]) -> list[Any]:
        try:
            return list(await self._line.ask("others", what=what, given=given) or ())
        except LineCutError:
            return []  # we are about to end

    def _exposition(self) -> bytes:
        return self._server.metrics.exposition() if self._server is not None else b""


def main() -> int:
    told = sys.stdin.buffer.read()
    if not told:
        return 0  # the parent ended before it could say anything
    orders = Orders.from_json(told)
    logs.configure(orders.settings, worker=orders.number)
    line = socket.socket(fileno=orders.line)

    async def run() -> int:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(line))
        return await Worker(orders, stream).run()

    return trio.run(run)


if __name__ == "__main__":
    sys.exit(main())
