"""The request body: read within a time limit, decompressed within a size limit, parsed strictly."""

from __future__ import annotations

import io
import zlib
from collections.abc import AsyncIterable
from typing import Any, Final

import msgspec
import trio
import zstandard

from pipeline.errors import ProxyError, rejection

MIB: Final = 1024 * 1024
LARGEST_WINDOW: Final = 8 * MIB
"""The largest window of a zstd frame, as the format recommends."""
DRAINED: Final = 4
"""Up to this many times the limit, a body that is too large is read and dropped: a client whose
upload is cut off would never read the error."""
MOST_MEMBERS: Final = 64
"""Each member of a gzip body costs a copy of the rest."""
_decode: Final = msgspec.json.Decoder().decode


async def read_json(
    chunks: AsyncIterable[bytes], encoding: str, *, limit: int, seconds: float
) -> Any:
    """The JSON value of a body. ProxyError says what is wrong with it."""
    data = b""
    with trio.move_on_after(seconds) as reading:
        data = await _read(chunks, limit)
    if reading.cancelled_caught:
        raise rejection(f"the body did not arrive within {seconds:g} s")
    return parse(unpack(data, encoding, limit))


async def _read(chunks: AsyncIterable[bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size <= limit:
            parts.append(chunk)
        elif size > limit * DRAINED:
            break
    if size > limit:
        raise too_large(limit)
    return b"".join(parts)


def unpack(data: bytes, encoding: str, limit: int) -> bytes:
    """The decompressed body; ProxyError as soon as it exceeds the limit."""
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "gzip" | "x-gzip":
            unpacked = _gunzip(data, limit)
        case "zstd":
            unpacked = _unzstd(data, limit)
        case other:
            raise rejection(
                f"content-encoding {other!r} is not supported; send zstd, gzip or none",
                status=415,
                code="unsupported_media_type",
            )
    if len(unpacked) > limit:
        raise too_large(limit)
    return unpacked


def _gunzip(data: bytes, limit: int) -> bytes:
    unpacked = b""
    for _ in range(MOST_MEMBERS):
        if not data:
            return unpacked
        member = zlib.decompressobj(wbits=31)
        try:
            unpacked += member.decompress(data, limit + 1 - len(unpacked))
        except zlib.error as error:
            raise rejection(f"the body is not gzip: {error}") from None
        if len(unpacked) > limit:
            return unpacked
        if not member.eof:
            raise rejection("the body is not gzip: it ends in the middle")
        data = member.unused_data
    raise rejection(f"the body has more than {MOST_MEMBERS} gzip members; send one")


def _unzstd(data: bytes, limit: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    try:
        with unpacker.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            return reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise rejection(f"the body is not zstd: {error}") from None


def parse(data: bytes) -> Any:
    """Parse JSON strictly: NaN and half surrogate pairs are errors."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise rejection(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise rejection("the body is nested too deeply; send something flatter") from None


def too_large(limit: int) -> ProxyError:
    return rejection(
        f"the body is larger than {limit / MIB:g} MiB; send less, or raise PROXY_BODY_LIMIT_MB",
        status=413,
        code="request_too_large",
    )
