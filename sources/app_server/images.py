"""Checks pictures before Codex does: one it cannot read it replaces by a note, silently."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import Json, as_json, as_list, text_of

_DATA_URL: Final = re.compile(r"data:([\w/+.-]+);base64,(.*)", re.DOTALL)
_SIGNATURES: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/jpg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def check_images(items: Iterable[Json]) -> None:
    """Raise ProxyError for the first picture that is none; addresses are the backend's to fetch."""
    for number, item in enumerate(items):
        for part in map(as_json, as_list(item.get("content"))):
            if part.get("type") == "input_image":
                problem = _problem(text_of(part.get("image_url")))
                if problem:
                    raise ProxyError(
                        Failure(
                            f"the image of message {number} {problem}",
                            status=400,
                            type="invalid_request_error",
                            code="invalid_image",
                            param=f"input[{number}]",
                        )
                    )


def _problem(url: str) -> str | None:
    if url.startswith(("http://", "https://")):
        return None
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return "is neither a http(s) address nor a data URL such as data:image/png;base64,…"
    signature = _SIGNATURES.get(found[1].lower())
    if signature is None:
        return f"is of type {found[1]}; PNG, JPEG, GIF and WebP are understood"
    try:
        start = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return "is not valid base64"
    return None if start.startswith(signature) else f"is not a {found[1]} file"
