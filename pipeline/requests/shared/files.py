"""The text of files that are sent inside a message."""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import unquote

from attrs import frozen

from pipeline.requests.shared.structure import WrongError

_DATA_URL: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)
_TEXT_TYPES: Final = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml|x-yaml|toml|javascript|typescript|sql|x-sh|x-ndjson)",
    re.IGNORECASE,
)


@frozen
class InlineFile:
    """A file part; both APIs use the same fields."""

    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None


def text_of_file(file: InlineFile) -> str:
    """A file's text under its name. WrongError if it has none."""
    if file.file_data is None:
        given = next((name for name in ("file_id", "file_url") if getattr(file, name)), "")
        if given:
            raise WrongError(
                "refers to a file that is not stored here, so it cannot be read; send its text in "
                "file_data, as data:text/plain;base64,…",
                f".{given}",
            )
        raise WrongError("is missing", ".file_data")
    text = _decoded(file.file_data)
    return f"{file.filename}:\n{text}" if file.filename else text


def _decoded(data: str) -> str:
    """The text of a data URL or of plain base64, or else the text itself."""
    found = _DATA_URL.fullmatch(data)
    if found is None:
        content = _from_base64(data)
        return data if content is None else _as_text(content)
    kind, options, rest = found[1], found[2].lower(), found[3]
    if kind and not _TEXT_TYPES.fullmatch(kind):
        raise _binary(f"is of type {kind:.80}")
    if not options.endswith(";base64"):
        return unquote(rest)
    content = _from_base64(rest)
    if content is None:
        raise WrongError("is not valid base64", ".file_data")
    return _as_text(content)


def _from_base64(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        return None


def _as_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _binary("is not UTF-8 text") from None


def _binary(problem: str) -> WrongError:
    return WrongError(
        f"{problem}; only text files can be sent, such as data:text/plain;base64,…", ".file_data"
    )
