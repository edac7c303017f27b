"""Which images can be sent to a model: a URL, or a data URL whose bytes match its type."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

_DATA_URL: Final = re.compile(r"data:([\w/+.-]+);base64,(.*)", re.DOTALL)
_SIGNATURES: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/jpg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def image_problem(url: str) -> str | None:
    """What is wrong with an image, or None; http(s) URLs are left to the backend."""
    if url.startswith(("http://", "https://")):
        return None
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return "is neither an http(s) URL nor a data URL such as data:image/png;base64,…"
    signature = _SIGNATURES.get(found[1].lower())
    if signature is None:
        return f"is of type {found[1]:.80}; it must be PNG, JPEG, GIF or WebP"
    try:
        start = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return "is not valid base64"
    return None if start.startswith(signature) else f"is not a {found[1]} file"
