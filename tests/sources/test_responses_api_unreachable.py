from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure
from pipeline.events import Failed, TurnEnd
from pipeline.turn import Turn
from sinks.collect import Collect
from sources.responses_api import ResponsesApiSource
from sources.responses_request import ResponsesApi


async def failure_from(url: str) -> Failure:
    """What a client is told, at the end of the whole recipe."""
    source = ResponsesApiSource(ResponsesApi(url))
    with trio.fail_after(30):
        failed, end = await recipe(Settings()).run(source, Collect(), Turn())
    assert isinstance(failed, Failed)
    assert isinstance(end, TurnEnd)
    return failed.error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_backend_that_is_not_there_is_a_502_that_says_so(host: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, so nobody else gets it, and never listened on
        place = f"http://{host}:{unused.getsockname()[1]}"
        failure = await failure_from(place)
    assert (failure.status, failure.code) == (502, "upstream_error")
    assert failure.message.startswith(f"the backend at {place} did not answer")
    assert "refused" in failure.message


async def test_a_host_that_nobody_knows_is_a_502_that_says_so() -> None:
    class NobodyKnows(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *asked: Any, **more: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async def getnameinfo(self, *asked: Any, **more: Any) -> Any:
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(NobodyKnows())
    failure = await failure_from("http://nowhere.example")
    assert (failure.status, failure.code) == (502, "upstream_error")
    assert "Name or service not known" in failure.message


async def test_a_backend_that_speaks_no_tls_is_a_502_that_says_so() -> None:
    async def plain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, plain, listeners)
        failure = await failure_from(f"https://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()
    assert failure.status == 502
    assert "SSL" in failure.message
