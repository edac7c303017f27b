"""Connections: kept, closed, too slow, too large, and never in anybody's way."""

from __future__ import annotations

import errno
import gzip
from typing import Any

import msgspec
import pytest
import trio
import zstandard

from pipeline.serve.body import MOST_MEMBERS
from pipeline.serve.http import listening, tcp
from tests.serve.scripted import CHAT, SOON, ScriptedBackend, Served, body, served
from tests.serve.wire import Wire, post, request, wire

KIB = 1 / 1024
GOOD = msgspec.json.encode(body())


async def test_one_connection_serves_one_request_after_the_other(shared: Served) -> None:
    async with wire(shared) as connection:
        for sent, method, status in [
            (post(), "POST", 200),
            (post(body(stream=True)), "POST", 200),
            (post(b"nonsense"), "POST", 400),
            (request("HEAD", "/v1/models"), "HEAD", 200),
            (request("OPTIONS", "/v1/models"), "OPTIONS", 204),
            (request("GET", "/nowhere"), "GET", 404),
            (request("PUT", "/v1/models"), "PUT", 405),
            (request("GET", "/v1/models", "Content-Length: 2") + b"{}", "GET", 200),
            (post(body(stream=True)), "POST", 200),
            (post(), "POST", 200),
        ]:
            await connection.write(sent)
            answer = await connection.read(method=method)
            assert answer.status == status
            assert "connection" not in answer.headers


async def test_requests_that_are_sent_ahead_are_answered_in_order(shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(request("GET", "/v1/models") + request("GET", "/livez") + post())
        objects = [(await connection.read()).json() for _ in range(3)]
    assert [told.get("object", "") for told in objects] == ["list", "", "chat.completion"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_wants_the_connection_closed_has_it_closed(
    stream: bool, shared: Served
) -> None:
    async with wire(shared) as connection:
        await connection.write(post(body(stream=stream), "Connection: close"))
        answer = await connection.read()
        assert answer.status == 200
        assert await connection.ended()
    assert not [line for line in await shared.until_logged() if "client_left" in line]


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with served(keep_alive=0.05) as here, wire(here) as connection:
        await connection.write(post())
        assert (await connection.read()).status == 200
        assert await connection.ended()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/mod", b"GET / HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async with served(keep_alive=0.05) as here, wire(here) as connection:
        await connection.write(sent)
        assert await connection.ended()


async def test_a_stream_may_be_silent_for_longer_than_a_connection_may_be_idle() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go,))
    async with served(backend, keep_alive=0.02, ping_interval=0.05, prime_window=0) as here:
        async with wire(here) as connection:
            await connection.write(post(body(stream=True)))
            for _ in range(3):
                await connection.read_until(b": ping\n\n")
        await here.until_logged()


@pytest.mark.parametrize(
    "sent",
    [post()[:-5], request("POST", CHAT, "Transfer-Encoding: chunked") + b"9\r\n{"],
    ids=["with its length", "in chunks"],
)
async def test_a_body_that_does_not_come_is_a_400_and_the_end(sent: bytes) -> None:
    async with served(read_timeout=0.05) as here, wire(here) as connection:
        await connection.write(sent)
        answer = await connection.read()
        assert answer.status == 400
        assert "did not arrive within 0.05 s" in answer.json()["error"]["message"]
        assert await connection.ended()


# -- bodies ----------------------------------------------------------------------------------------


async def test_a_body_up_to_the_limit_is_taken_and_one_beyond_is_not() -> None:
    async with served(body_limit_mb=4 * KIB) as here:
        padding = 4096 - len(GOOD)
        exact, over = GOOD + b" " * padding, GOOD + b" " * (padding + 1)
        path = "/v1/chat/completions"
        assert (await here.client.post(path, content=exact)).status_code == 200
        refused = await here.client.post(path, content=over)
        assert refused.status_code == 413
        assert refused.json()["error"]["code"] == "request_too_large"
        headers = {"Content-Encoding": "gzip"}
        packed = await here.client.post(path, content=gzip.compress(over), headers=headers)
        assert packed.status_code == 413


async def test_the_limit_is_the_operators_own_however_large() -> None:
    large = msgspec.json.encode(body("x" * 17_000_000))
    async with served(body_limit_mb=20.0) as here:
        answer = await here.client.post("/v1/chat/completions", content=large)
        assert answer.status_code == 200


@pytest.mark.parametrize("declared", [True, False], ids=["with its length", "in chunks"])
@pytest.mark.parametrize(("key", "status"), [("", 413), ("k", 401)])
async def test_who_is_refused_while_sending_can_read_why(
    key: str, status: int, declared: bool
) -> None:
    """A reset in the middle of sending would lose the answer."""
    size = 20_000_000
    chunk = b"x" * 65_536
    head = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    async with served(body_limit_mb=64 * KIB, api_keys=key) as here, wire(here) as connection:
        await connection.write(request("POST", "/v1/chat/completions", head))
        for _ in range(size // len(chunk)):
            await connection.write(chunk if declared else b"10000\r\n" + chunk + b"\r\n")
        assert (await connection.read()).status == status
        assert await connection.ended()


async def endless(connection: Wire) -> None:
    while True:
        await connection.write(b"x" * 65_536)


async def test_who_goes_on_sending_for_ever_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "LINGERING", 0.05)
    async with served(body_limit_mb=2 * KIB) as here, wire(here) as connection:
        await connection.write(request("POST", "/v1/chat/completions", "Content-Length: 999999999"))
        with trio.fail_after(SOON), pytest.raises(trio.BrokenResourceError):
            await endless(connection)


async def test_a_body_that_nobody_reads_is_not_kept(shared: Served) -> None:
    """A cold backend makes `/v1/models` wait, and a body with it."""
    config: Any = shared.server.config
    limit = int(config["MAX_CONTENT_LENGTH"])
    kept: Any = shared.server.request_class.body_class(None, limit)
    for _ in range(40):
        kept.append(b"x" * 1_000_000)
    assert len(kept._data) <= limit + 1_000_000  # noqa: SLF001


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "x-gzip", "identity"])
async def test_bodies_may_be_packed(encoding: str, shared: Served) -> None:
    packed = {
        "zstd": zstandard.ZstdCompressor().compress(GOOD),
        "identity": GOOD,
    }.get(encoding, gzip.compress(GOOD))
    async with wire(shared) as connection:
        await connection.write(post(packed, f"Content-Encoding: {encoding}"))
        assert (await connection.read()).status == 200


async def test_a_bomb_of_a_million_members_does_not_go_off(shared: Served) -> None:
    bomb = gzip.compress(b"") * 400_000
    async with wire(shared) as connection:
        await connection.write(post(bomb, "Content-Encoding: gzip"))
        answer = await connection.read()
    assert answer.status == 400
    assert f"more than {MOST_MEMBERS} gzip members" in answer.json()["error"]["message"]


# -- beside HTTP/1.1 -------------------------------------------------------------------------------


async def test_an_upgrade_is_not_granted_and_the_request_is_served(shared: Served) -> None:
    wish = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with wire(shared) as connection:
        for _ in range(2):
            await connection.write(request("GET", "/v1/models", *wish))
            assert (await connection.read()).status == 200


async def test_http_2_from_the_start_is_refused(shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await connection.read()).json()["error"]["type"] == "invalid_request_error"
        assert await connection.ended()


@pytest.mark.parametrize("sent", [b"", post(), request("HEAD", "/livez"), post()[:-5], b"GET /"])
async def test_a_connection_is_gone_when_its_client_is(sent: bytes, shared: Served) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(3):
        async with wire(shared) as connection:
            await connection.write(sent)
    await shared.until(lambda: trio.lowlevel.current_statistics().tasks_living <= before)


async def test_a_process_without_free_files_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "RETRY_INTERVAL", 0.001)
    accept = trio.SocketListener.accept
    left = [OSError(errno.EMFILE, "Too many open files")] * 5

    async def fail_at_first(listener: trio.SocketListener) -> trio.SocketStream:
        stream = await accept(listener)
        if not left:
            return stream
        await stream.aclose()
        raise left.pop()

    monkeypatch.setattr(trio.SocketListener, "accept", fail_at_first)
    async with served() as here:
        for _ in range(5):
            async with wire(here) as connection:
                assert await connection.ended()
        assert (await here.ask()).status_code == 200
    (line,) = here.lines("connections cannot be accepted")
    assert line["why"] == "Too many open files"
    assert len(here.log.getvalue().splitlines()) == 2
