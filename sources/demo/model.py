"""A scripted model with the Responses API: an HTTP server on loopback, without a login."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import msgspec
import trio
from hypercorn.config import Config

from pipeline.errors import only_member
from pipeline.loose_json import Json, as_json
from sources.demo.script import Says, answer, events

_serve: Any = import_module("hypercorn.trio").serve  # partly untyped


class ScriptedModel:
    """Answers `POST …/responses` from the script, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.leavers = 0
        """The number of clients that disconnected during an answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "POST" or not scope["path"].endswith("/responses"):
            await _respond(send, 404, b"{}")
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = as_json(msgspec.json.decode(body))
        thread = request.get("prompt_cache_key")
        first = thread not in [earlier.get("prompt_cache_key") for earlier in self.requests]
        self.requests.append(request)
        says = answer(request)
        if says.status != 200:
            await _respond(send, says.status, msgspec.json.encode(says.body))
        else:
            await self._stream(says, receive, send, first=first)

    async def _stream(self, says: Says, receive: Any, send: Any, *, first: bool) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events(says, first=first):
            if event["type"] == "pause":
                await trio.sleep(event["seconds"])
                continue
            data = b"event: %b\ndata: %b\n\n" % (
                event["type"].encode(),
                msgspec.json.encode(event),
            )
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if says.ending == "hang":
            await receive()  # until the client disconnects
            self.leavers += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncGenerator[str]:
        """Serve on loopback; gives the base URL of the API."""
        try:
            async with trio.open_nursery() as nursery:
                config = Config()
                config.bind = [f"127.0.0.1:{port}"]
                config.graceful_timeout = 0.1
                config.errorlog = None
                (address,) = await nursery.start(_serve, self, config)
                yield f"{address}/v1"
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _respond(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
