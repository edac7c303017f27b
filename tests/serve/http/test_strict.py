"""Requests that HTTP/1.1 does not allow: refused at once, and nothing after them is served."""

from __future__ import annotations

import msgspec
import pytest
import trio

from tests.serve.scripted import CHAT, SOON, Served, body
from tests.serve.wire import request, wire

GOOD = msgspec.json.encode(body())
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
NEXT = request("GET", "/livez")


def chat(*headers: str, data: bytes = IN_CHUNKS, version: str = "1.1") -> bytes:
    return request("POST", CHAT, *headers, version=version) + data


def models(*headers: str, target: str = "/v1/models", version: str = "1.1") -> bytes:
    return request("GET", target, *headers, version=version)


LENGTH = f"Content-Length: {len(GOOD)}"
CHUNKED = "Transfer-Encoding: chunked"
FOLDED = "Transfer-Encoding:\r\n chunked"

REFUSED: dict[str, tuple[bytes, int, str]] = {
    # Where the body ends must not be open to interpretation.
    "a length and chunks": (chat(LENGTH, CHUNKED), 400, "exclude each other"),
    "chunks and a length": (chat(CHUNKED, "Content-Length: 0"), 400, "exclude each other"),
    "chunks in HTTP/1.0": (chat(CHUNKED, version="1.0"), 400, "HTTP/1.0 has no"),
    "two lengths": (chat("Content-Length: 2", "Content-Length: 3", data=b"{}"), 400, "not valid"),
    "a list of lengths": (chat("Content-Length: 2, 3", data=b"{}"), 400, "not valid"),
    "a signed length": (chat("Content-Length: +2", data=b"{}"), 400, "not valid"),
    "a hexadecimal length": (chat("Content-Length: 0x2", data=b"{}"), 400, "not valid"),
    "a length of 21 digits": (chat("Content-Length: " + "9" * 21, data=b""), 400, "not valid"),
    "chunked twice": (chat(CHUNKED, CHUNKED), 501, "transfer-encoding"),
    "chunked, chunked": (chat("Transfer-Encoding: chunked, chunked"), 501, "transfer-encoding"),
    "another coding": (chat("Transfer-Encoding: identity"), 501, "transfer-encoding"),
    "xchunked": (chat("Transfer-Encoding: xchunked"), 501, "transfer-encoding"),
    "a space before the colon": (chat("Transfer-Encoding : chunked"), 400, "not valid"),
    # Chunks.
    "a chunk of 2**63": (chat(CHUNKED, data=b"8000000000000000\r\n"), 400, "too large"),
    "a chunk of 2**64": (chat(CHUNKED, data=b"10000000000000000\r\nxyz"), 400, "too large"),
    "a chunk of 20 digits": (chat(CHUNKED, data=b"F" * 20 + b"\r\n{}\r\n"), 400, "too large"),
    "a later chunk of 20 digits": (
        chat(CHUNKED, data=b"2\r\n{}\r\n" + b"F" * 20 + b"\r\n"),
        400,
        "too large",
    ),
    "a chunk of 21 digits": (chat(CHUNKED, data=b"0" * 20 + b"2\r\n{}"), 400, "not valid"),
    "a chunk below nothing": (chat(CHUNKED, data=b"-2\r\n{}\r\n"), 400, "not valid"),
    "a chunk with 0x": (chat(CHUNKED, data=b"0x2\r\n{}\r\n"), 400, "not valid"),
    "a chunk that ends with LF": (chat(CHUNKED, data=b"2\r\n{}\n0\r\n\r\n"), 400, "not valid"),
    "a size that ends with LF": (chat(CHUNKED, data=b"2\n{}\r\n0\r\n\r\n"), 400, "not valid"),
    # Lines.
    "bare LF": (models().replace(b"\r\n", b"\n"), 400, "LF alone"),
    "bare LF in one place": (models("A: 1\nB: 2"), 400, "LF alone"),
    "bare LF before chunks": (chat(f"A: 1\n{CHUNKED}"), 400, "LF alone"),
    "bare LF at the end of the head": (models()[:-2] + b"\n", 400, "LF alone"),
    "bare LF in half a head": (b"GET / HTTP/1.1\nHost:", 400, "LF alone"),
    "bare CR": (models("A: 1\rB: 2"), 400, "not valid"),
    "obs-fold": (models("A: 1\r\n 2"), 400, "continued"),
    "obs-fold with a tab": (models("A: 1\r\n\t2"), 400, "continued"),
    "obs-fold in transfer-encoding": (chat(FOLDED), 400, "continued"),
    "obs-fold in a length": (chat("Content-Length:\r\n 2", data=b"{}"), 400, "continued"),
    "obs-fold in half a head": (b"GET / HTTP/1.1\r\nA: b\r\n c", 400, "continued"),
    # Versions.
    "HTTP/3.7": (models(version="3.7"), 505, "send HTTP/1.1"),
    "HTTP/2.0": (models(version="2.0"), 505, "send HTTP/1.1"),
    "HTTP/0.9": (models(version="0.9"), 505, "send HTTP/1.1"),
    "HTTP/11": (models(version="11"), 400, "not valid"),
    "HTTP/1.10": (models(version="1.10"), 400, "not valid"),
    "no version": (b"GET /v1/models\r\n\r\n", 400, "not valid"),
    # Expectations and addresses.
    "an unknown Expect": (chat("Expect: the-spanish-inquisition", LENGTH, data=GOOD), 417, "100-"),
    "one of two unknown": (models("Expect: 100-continue, x"), 417, "100-continue"),
    "a foreign host": (models(target="http://example.org/v1/models"), 421, "same host"),
    "a foreign port": (models(target="http://localhost:1/v1/models"), 421, "same host"),
    "a foreign host with a query": (models(target="http://example.org?/"), 421, "same host"),
    "a user": (models(target="http://localhost@example.org/v1/models"), 421, "same host"),
    "no host in the address": (models(target="http:///v1/models"), 421, "same host"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_that_is_not_allowed_ends_the_connection(name: str, shared: Served) -> None:
    """What follows is not served: it may be what a proxy took for a part of the body."""
    data, status, words = REFUSED[name]
    whole = b"\r\n\r\n" in data
    async with wire(shared) as connection:
        await connection.write(data + NEXT if whole else data)
        answer = await connection.read()
        assert await read_rest(connection.stream) == b""
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not shared.lines("a connection broke")


async def read_rest(stream: trio.SocketStream) -> bytes:
    with trio.fail_after(SOON):
        return b"".join([bytes(data) async for data in stream])


ALLOWED: dict[str, bytes] = {
    "HTTP/1.0": models(version="1.0"),
    "HTTP/1.2": models(version="1.2"),
    "an Expect": models("Expect: 100-Continue"),
    "an unknown Expect in HTTP/1.0": models("Expect: x", version="1.0"),
    "its own address": models(target="HTTP://LOCALHOST/v1/models"),
    "an address in the query": models(target="/v1/models?of=http://example.org/"),
    "chunks with zeros and an extension": chat(
        CHUNKED, data=b"%020x;a=b\r\n%b\r\n0\r\nA: b\r\n\r\n" % (len(GOOD), GOOD)
    ),
    "tabs in a value": models("A: 1\t2"),
}


@pytest.mark.parametrize("name", ALLOWED)
async def test_what_is_rare_but_allowed_is_served(name: str, shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(ALLOWED[name])
        assert (await connection.read()).status == 200


@pytest.mark.parametrize("name", ["HTTP/3.7", "bare LF"])
async def test_who_goes_on_sending_can_read_why_it_was_refused(name: str, shared: Served) -> None:
    """Closing a socket with unread bytes would reset the connection."""
    data, _, words = REFUSED[name]
    async with wire(shared) as connection:
        await connection.write(data + NEXT * 10_000)
        answer = await read_rest(connection.stream)  # raises if the connection was reset
    assert words.encode() in answer


@pytest.mark.parametrize("name", ["bare LF", "obs-fold", "a length and chunks"])
async def test_a_request_that_comes_byte_by_byte_is_refused_too(name: str, shared: Served) -> None:
    data, status, words = REFUSED[name]
    async with wire(shared) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(byte_by_byte, connection.stream, data)
        answer = await connection.read()
        nursery.cancel_scope.cancel()
    assert answer.status == status
    assert words in answer.json()["error"]["message"]


async def byte_by_byte(stream: trio.SocketStream, data: bytes) -> None:
    try:
        for byte in data:
            await stream.send_all(bytes([byte]))
    except trio.BrokenResourceError:
        pass  # it was refused before its end


async def test_the_second_request_of_a_connection_is_checked_as_the_first(shared: Served) -> None:
    async with wire(shared) as connection:
        await connection.write(models() + REFUSED["bare LF"][0] + NEXT)
        assert (await connection.read()).status == 200
        assert (await connection.read()).status == 400
        assert await read_rest(connection.stream) == b""
