"""Bodies: packed, torn, late, huge, and not JSON."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
import trio
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProxyError
from pipeline.serve.body import parse, read_json, unpack

LIMIT = 10_000


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def refusal(data: bytes, encoding: str) -> tuple[int, str]:
    with pytest.raises(ProxyError) as refused:
        unpack(data, encoding, LIMIT)
    return refused.value.failure.status, refused.value.failure.message


@given(st.binary(max_size=LIMIT))
def test_what_was_packed_is_unpacked(data: bytes) -> None:
    assert unpack(data, "", LIMIT) == data
    assert unpack(data, "identity", LIMIT) == data
    assert unpack(gzip.compress(data), "GZip", LIMIT) == data
    assert unpack(gzip.compress(data[:5]) + gzip.compress(data[5:]), "gzip", LIMIT) == data
    assert unpack(zstd(data), "zstd", LIMIT) == data
    assert unpack(zstd(data[:5]) + zstd(data[5:]), "zstd", LIMIT) == data


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_does_not_go_off(encoding: str) -> None:
    pack = {"gzip": gzip.compress, "zstd": zstd}[encoding]
    status, message = refusal(pack(b" " * 200_000_000), encoding)
    assert status == 413
    assert "PROXY_BODY_LIMIT_MB" in message


def test_a_frame_that_wants_too_much_memory_is_refused() -> None:
    greedy = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=greedy)
    frame = packer.compressobj()
    packed = frame.compress(b"{}" * 100) + frame.flush()
    assert refusal(packed, "zstd")[0] == 400


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (b"{}", "gzip", 400),
        (gzip.compress(b"{}")[:-3], "gzip", 400),
        (zlib.compress(b"{}"), "gzip", 400),
        (b"{}", "zstd", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
)
def test_what_cannot_be_unpacked_is_refused(data: bytes, encoding: str, status: int) -> None:
    assert refusal(data, encoding)[0] == status


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":1',
        b"{'a':1}",
        b'{"a":NaN}',
        b"[Infinity]",
        b"[1e999]",
        b'"\\ud800"',
        b'"\xff"',
        b"{} {}",
        b"[" * 100_000,
        b"[" * 5_000 + b"]" * 5_000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyError) as refused:
        parse(data)
    assert refused.value.failure.status == 400


async def test_a_body_in_pieces_is_one_body() -> None:
    assert await read_json(pieces(b'{"a":', b"[1,", b"2]}"), "", limit=LIMIT, seconds=5) == {
        "a": [1, 2]
    }


async def test_a_body_that_does_not_come_is_not_waited_for(autojump_clock: trio.abc.Clock) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await trio.sleep_forever()

    with pytest.raises(ProxyError, match="did not arrive within 5 s"):
        await read_json(never(), "", limit=LIMIT, seconds=5)


async def test_a_body_that_is_too_large_is_read_on_for_a_while() -> None:
    read: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        for number in range(1_000_000):
            read.append(number)
            yield b" " * 1_000

    with pytest.raises(ProxyError) as refused:
        await read_json(endless(), "", limit=LIMIT, seconds=5)
    assert refused.value.failure.status == 413
    assert len(read) == 41


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
