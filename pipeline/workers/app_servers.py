"""App-servers that the supervisor runs and the workers use: both ends of a lease."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio
from attrs import evolve

from pipeline.workers.ipc import Connection, connect
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.pool import hides_mcp
from sources.app_server.process.supervisor import AppServer
from sources.app_server.protocol.client import AppServerClient
from sources.app_server.transport.listening_child import ListeningChild
from sources.app_server.transport.transport import Transport, TransportClosedError
from sources.app_server.transport.websocket import WebSocketTransport

NAME: Final = "codex app-server"
"""The name in error messages, because the path of its socket is private."""


async def lease(server: AppServer, connection: Connection) -> object:
    """Send a worker the address of an app-server, or why it could not be started.

    The app-server is kept running until the worker closes the connection, even if it is replaced.
    The worker gets a message when it is replaced, and sends one for each turn that it starts.
    """
    if server.leading is None:
        await server.until_changed()
    if server.leading is None:
        return {"reason": server.problem, "last_words": server.last_words}
    client, child = server.leading
    assert isinstance(child, ListeningChild)  # noqa: S101
    client.enter()
    try:
        await connection.send({"address": child.address})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_notify_when_replaced, server, client, connection)
            while await connection.receive() is not None:
                server.turn_begins()
            nursery.cancel_scope.cancel()
    finally:
        client.leave()
    return None


async def _notify_when_replaced(
    server: AppServer, client: AppServerClient, connection: Connection
) -> None:
    while server.leading is None or server.leading[0] is client:
        await server.until_changed()
    await connection.send("replaced")


def leased_app_server(supervisor: Path, number: int, options: BackendOptions) -> AppServer:
    """An app-server of the supervisor, in a worker; each connection to it has its own lease."""
    newest: Connection | None = None

    def count_turn() -> None:
        if newest is not None:
            newest.send_now("turn")

    async def connect_to_it(nursery: trio.Nursery) -> Transport:
        address: str = await nursery.start(hold)
        return await WebSocketTransport.connect(nursery, address, name=NAME)

    async def hold(task_status: trio.TaskStatus[str]) -> None:
        """Hold a lease while the connection's nursery runs."""
        nonlocal newest
        async with connect(supervisor) as connection:
            await connection.send({"kind": "lease", "server": number})
            reply = await connection.receive() or {"reason": "the server is stopping"}
            if "address" not in reply:
                raise TransportClosedError(reply["reason"], reply.get("last_words", ""))
            newest = connection
            task_status.started(reply["address"])
            if await connection.receive() is not None:
                server.renew()
            await trio.sleep_forever()

    server = AppServer(
        name=NAME,
        connect=connect_to_it,
        workspace=str(options.workspace),
        # The supervisor waits between restarts: it replies when the app-server runs again.
        patience=evolve(options.patience, longest_pause=options.patience.first_pause),
        sees_files=options.view_image,
        hides_mcp=hides_mcp(options, ours=True),
        on_turn=count_turn,
    )
    return server
