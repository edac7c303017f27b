"""`/v1/responses/{id}`: show, list the input of, cancel and delete stored responses."""

from __future__ import annotations

from typing import Any, Final

from quart import Response, request

from pipeline.errors import Failure, ProxyError, refusal, rejection
from pipeline.loose_json import text_of
from pipeline.serve.answers import here, json_response
from pipeline.serve.memory.remembered import unknown_response
from pipeline.serve.memory.stored_response import StoredResponse
from pipeline.serve.server import Server

DEFAULT_PAGE: Final = 20
LARGEST_PAGE: Final = 100
PAGES: Final = frozenset(map(str, range(1, LARGEST_PAGE + 1)))

NO_REPLY: Final = Failure(
    "the process that runs this response did not reply in time: it may still be running, and "
    "nothing was deleted; try again soon",
    status=503,
    type="server_error",
    code="server_is_overloaded",
    retry_after=5.0,
)


def add_routes(server: Server) -> None:
    @server.get("/v1/responses/<response_id>")
    async def show(response_id: str) -> Response:
        if request.args.get("stream", "").lower() in {"1", "true"}:
            raise refusal("stream", "is not available for a stored response; poll it")
        return json_response((await _found(server, response_id)).response)

    @server.delete("/v1/responses/<response_id>")
    async def delete(response_id: str) -> Response:
        await _ended(server, await _found(server, response_id))
        if not await server.store.delete(here().caller, response_id):
            raise ProxyError(unknown_response(response_id))
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @server.get("/v1/responses/<response_id>/input_items")
    async def input_items(response_id: str) -> Response:
        stored = await _found(server, response_id)
        return json_response(_page([dict(item) for item in stored.input_items]))

    @server.post("/v1/responses/<response_id>/cancel")
    async def cancel(response_id: str) -> Response:
        stored = await _found(server, response_id)
        if stored.response.get("background") is not True:
            raise rejection("only a response that was created with background can be cancelled")
        return json_response((await _ended(server, stored)).response)


async def _found(server: Server, response_id: str) -> StoredResponse:
    stored = await server.jobs.find(here().caller, response_id)
    if stored is None:
        raise ProxyError(unknown_response(response_id))
    return stored


async def _ended(server: Server, stored: StoredResponse) -> StoredResponse:
    """The final state of a response, which is cancelled if it is still running."""
    job = server.jobs.get(stored.response_id)
    if job is not None:
        job.scope.cancel()
        await job.over.wait()
    elif stored.unfinished:
        await server.peers.ask("cancel", id=stored.response_id)
    else:
        return stored
    last = await server.store.get(stored.owner, stored.response_id)
    if last is None:
        raise ProxyError(unknown_response(stored.response_id))
    if last.unfinished:
        raise ProxyError(NO_REPLY)
    return last


def _page(items: list[dict[str, Any]]) -> dict[str, Any]:
    """One page of a list, as the query parameters say; newest first by default."""
    order = _one_of("order", ("asc", "desc"), "desc")
    limit = request.args.get("limit", str(DEFAULT_PAGE))
    if limit not in PAGES:
        raise refusal("limit", f"must be a number from 1 to {LARGEST_PAGE}")
    if order == "desc":
        items.reverse()
    after = request.args.get("after")
    if after is not None:
        ids = [text_of(item.get("id")) for item in items]
        if after not in ids:
            raise refusal("after", "must be the id of one of the items")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(items) > len(page),
    }


def _one_of(name: str, values: tuple[str, ...], default: str) -> str:
    given = request.args.get(name, default)
    if given not in values:
        raise refusal(name, f"must be one of {', '.join(values)}")
    return given
