"""Which features an app-server supports, probed instead of derived from its version."""

from __future__ import annotations

import re
from typing import Final

from attrs import define, frozen

from pipeline.events import ResponseEnds
from sources.app_server.protocol.client import AppServerClient, BackendGoneError
from sources.app_server.protocol.rpc import INVALID_REQUEST, RpcError

_METHODS: Final = re.compile(r"`([\w/]+)`")
_NO_METHOD: Final = "capabilities/probe"


@frozen
class Capabilities:
    """The supported features; missing ones have a fallback."""

    dynamic_tools: bool = False
    inject_items: bool = False
    delete_thread: bool = False
    archive_thread: bool = False
    raw_events: bool = False
    read_config: bool = False


@define
class Learned:
    """What a backend was observed to report; it cannot be probed."""

    response_ends: ResponseEnds = "unknown"

    def note(self, response_ends: ResponseEnds) -> None:
        """Note what a turn has shown; a backend that reported an end once is known to report it."""
        if response_ends != "unknown" and self.response_ends != "told":
            self.response_ends = response_ends


async def probe(client: AppServerClient) -> Capabilities:
    """Call a method that does not exist: the error lists those that do.

    A field is known if a wrong type in it is rejected. An old backend ignores the field and starts
    a thread instead, which is deleted again.
    """
    methods = await _known_methods(client)
    if methods and "turn/start" not in methods:
        raise BackendGoneError(
            f"this Codex ({client.user_agent or 'of unknown version'}) is too old: it has no "
            "turn/start; install 0.89 or newer"
        )
    return Capabilities(
        dynamic_tools=await _knows_field(client, "dynamicTools", methods),
        inject_items="thread/inject_items" in methods,
        delete_thread="thread/delete" in methods,
        archive_thread="thread/archive" in methods,
        raw_events=await _knows_field(client, "experimentalRawEvents", methods),
        read_config="config/read" in methods,
    )


async def _known_methods(client: AppServerClient) -> frozenset[str]:
    try:
        await client.request(_NO_METHOD, {}, expects_refusal=True)
    except RpcError as error:
        return frozenset(_METHODS.findall(error.message)) - {_NO_METHOD}
    return frozenset()


async def _knows_field(client: AppServerClient, field: str, methods: frozenset[str]) -> bool:
    try:
        started = await client.request("thread/start", {field: 0}, expects_refusal=True)
    except RpcError as error:
        if error.code != INVALID_REQUEST:
            raise
        return True
    thread = started.get("thread", {}).get("id")
    if thread and "thread/archive" in methods:
        await client.request("thread/archive", {"threadId": thread})
    return False
