"""A request's body: read in time, unpacked within bounds, and decoded strictly."""

from __future__ import annotations

import io
import zlib
from collections.abc import AsyncIterable
from typing import Any, Final

import msgspec
import trio
import zstandard

from pipeline.errors import Failure, ProxyError

MIB: Final = 1024 * 1024
LARGEST_WINDOW: Final = 8 * MIB
"""What a zstd frame may ask us to keep; the format's own recommendation."""
DRAINED: Final = 4
"""A body that is too large is read on for so many times the limit: a client that is cut off in the
middle of sending never reads why."""
MOST_MEMBERS: Final = 64
"""Each member of a gzip body costs a copy of what follows it."""
_decode: Final = msgspec.json.Decoder().decode


async def read_json(
    chunks: AsyncIterable[bytes], encoding: str, *, limit: int, seconds: float
) -> Any:
    """The JSON value in a body. ProxyError names what was wrong with it."""
    data = b""
    with trio.move_on_after(seconds) as reading:
        data = await _read(chunks, limit)
    if reading.cancelled_caught:
        raise _refusal(400, f"the body did not arrive within {seconds:g} s")
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
    """The body as it was before its content-encoding, or an error once it exceeds the limit."""
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "gzip" | "x-gzip":
            unpacked = _gunzip(data, limit)
        case "zstd":
            unpacked = _unzstd(data, limit)
        case other:
            raise _refusal(
                415,
                f"content-encoding {other!r} is not understood; send zstd, gzip or none",
                "unsupported_media_type",
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
            raise _refusal(400, f"the body is not gzip: {error}") from None
        if len(unpacked) > limit:
            return unpacked
        if not member.eof:
            raise _refusal(400, "the body is not gzip: it ends in the middle")
        data = member.unused_data
    raise _refusal(400, f"the body has more than {MOST_MEMBERS} gzip members; send one")


def _unzstd(data: bytes, limit: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    try:
        with unpacker.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            return reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise _refusal(400, f"the body is not zstd: {error}") from None


def parse(data: bytes) -> Any:
    """Decode JSON; what JSON does not allow, NaN and half surrogate pairs included, is an error."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refusal(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise _refusal(400, "the body is nested too deeply; send something flatter") from None


def too_large(limit: int) -> ProxyError:
    return _refusal(
        413,
        f"the body is larger than {limit / MIB:g} MiB; send less, or raise PROXY_BODY_LIMIT_MB",
        "request_too_large",
    )


def _refusal(status: int, message: str, code: str = "invalid_request_error") -> ProxyError:
    return ProxyError(Failure(message, status=status, type="invalid_request_error", code=code))
