"""The other processes that serve the same address: what they are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.loose_json import Json, as_json, text_of

if TYPE_CHECKING:
    from pipeline.serve.app import Server


class Siblings(Protocol):
    """A request may land on any of several processes; this is how one learns of the others."""

    async def written(self) -> None:
        """Until everything they have been told to keep can be found in the store."""
        ...

    async def makes(self, response_id: str) -> bool:
        """Whether one of them makes a response. If none does, its last state is in the store."""
        ...

    async def cancel(self, owner: str, response_id: str) -> None:
        """Have a response made no more; its last state is in the store then."""
        ...

    async def health(self) -> list[Json]:
        """What runs and waits with each of them."""
        ...

    async def metrics(self) -> dict[str, str]:
        """What each has counted, us included, by its name; nothing where we are alone."""
        ...


class Alone:
    """No siblings."""

    async def written(self) -> None:
        return

    async def makes(self, response_id: str) -> bool:
        del response_id
        return False

    async def cancel(self, owner: str, response_id: str) -> None:
        del owner, response_id

    async def health(self) -> list[Json]:
        return []

    async def metrics(self) -> dict[str, str]:
        return {}


AskAll = Callable[[str, Mapping[str, Any]], Awaitable[list[Any]]]
"""Asks every sibling that lives, and returns what those have answered that did so in time."""


class Asked:
    """Siblings that are asked all at once, each answering with `answer_sibling`."""

    def __init__(self, name: str, ask_all: AskAll, exposition: Callable[[], bytes]) -> None:
        self._name = name
        self._ask_all = ask_all
        self._exposition = exposition

    async def written(self) -> None:
        await self._ask_all("written", {})

    async def makes(self, response_id: str) -> bool:
        return any(await self._ask_all("makes", {"id": response_id}))

    async def cancel(self, owner: str, response_id: str) -> None:
        await self._ask_all("cancel", {"owner": owner, "id": response_id})

    async def health(self) -> list[Json]:
        return [as_json(one) for one in await self._ask_all("health", {})]

    async def metrics(self) -> dict[str, str]:
        told = map(as_json, await self._ask_all("metrics", {}))
        others = {text_of(one.get("name")): text_of(one.get("text")) for one in told}
        return {self._name: self._exposition().decode(), **others}


async def answer_sibling(server: Server, name: str, what: str, given: Json) -> object:
    """Answer what a sibling asked."""
    response_id = text_of(given.get("id"))
    match what:
        case "written":
            await server.store.until_written()
            return None
        case "makes":
            if response_id in server.jobs:
                return True
            await server.store.until_written()  # it is kept, and then no longer made
            return False
        case "cancel":
            job = server.jobs.get(response_id)
            if job is not None and job.owner == given.get("owner"):
                job.scope.cancel()
                await job.over.wait()
                await server.store.until_written()
            return None
        case "health":
            return {"turns": server.admission.running, "waiting": server.admission.waiting}
        case "metrics":
            return {"name": name, "text": server.metrics.exposition().decode()}
        case _:
            raise ValueError(f"a sibling asked for {what!r:.40}, which is not known here")
