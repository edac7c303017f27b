"""Responses that are being made in the background."""

from __future__ import annotations

from typing import Any, Final

import trio
from attrs import Factory, define, evolve

from pipeline.errors import Failure
from pipeline.loose_json import Json
from pipeline.serve.memory.peers import Peers
from pipeline.serve.memory.sqlite import SqliteStore
from pipeline.serve.memory.stored_response import StoredResponse
from sinks.responses import error_object

ABANDONED: Final = Failure("the server ended while it made this response; send the request again")


@define
class Job:
    """One response that is being made."""

    scope: trio.CancelScope = Factory(trio.CancelScope)
    over: trio.Event = Factory(trio.Event)
    last: dict[str, Any] | None = None
    """What is to be stored when it ends; None if it is stored already."""


class Jobs(dict[str, Job]):
    """The jobs of this process by the ids of their responses; those of other workers are asked."""

    def __init__(self, store: SqliteStore, peers: Peers) -> None:
        super().__init__()
        self._store = store
        self._peers = peers

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """What is stored of a response; one that is not finished and not being made has failed."""
        being_made = response_id in self  # looked up first: at its end it is stored, then gone
        stored = await self._store.get(owner, response_id)
        if stored is not None and stored.unfinished and not being_made:
            replies = await self._peers.ask("makes", id=response_id)
            being_made = any(reply is not False for reply in replies)  # a silent one may make it
            stored = await self._store.get(owner, response_id)
        if stored is None or not stored.unfinished or being_made:
            return stored
        return evolve(stored, response=as_failed(stored.response, ABANDONED))


def as_failed(response: Json, failure: Failure) -> dict[str, Any]:
    """A response with the failure that it ended with."""
    error = error_object(failure)
    return {**response, "status": "failed", "error": error}
