"""Encrypts data that a client keeps for the server, bound to the caller it was made for."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pipeline.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VERSION: Final = "sealed1."
LARGEST: Final = 32 * 1024 * 1024


class BrokenSealError(ValueError):
    """Sealed with another key, for another caller, or altered since."""


class Seal:
    """Authenticated encryption under one key; `owner` is part of what is authenticated."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @cached_property
    def _cipher(self) -> AESGCM:
        """Imported on first use: it is a tenth of the memory of a server that seals nothing."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return AESGCM(self._key)

    @classmethod
    def from_file(cls, path: str) -> Seal:
        """The seal with the key in a file, which is created if missing."""
        file = Path(path).expanduser()
        try:
            key = _read_or_make(file)
        except OSError as error:
            raise UsageError(f"PROXY_SEAL_KEY_FILE={path} cannot be used: {error}") from None
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"PROXY_SEAL_KEY_FILE={path} holds {len(key)} bytes; it takes {KEY_BYTES}, or a "
                "file that does not exist yet"
            )
        return cls(key)

    @classmethod
    def temporary(cls) -> Seal:
        """A seal with a key that lasts until this process ends."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def close(self, value: object, owner: str) -> str:
        """The value as sealed text."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        packed = zlib.compress(msgspec.json.encode(value))
        sealed = self._cipher.encrypt(nonce, packed, owner.encode())
        return VERSION + base64.urlsafe_b64encode(nonce + sealed).decode()

    def open(self, text: str, owner: str) -> Any:
        """The sealed value. BrokenSealError if it was sealed elsewhere or for another owner."""
        version, _, body = text.partition(".")
        try:
            if f"{version}." != VERSION:
                raise BrokenSealError("it was not sealed here")
            data = base64.urlsafe_b64decode(body.encode("ascii"))
            packed = self._decrypted(data, owner)
        except (binascii.Error, ValueError) as error:
            raise BrokenSealError("it was sealed elsewhere, for another key, or altered") from error
        return msgspec.json.decode(zlib.decompressobj().decompress(packed, LARGEST))

    def _decrypted(self, data: bytes, owner: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # see above

        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], owner.encode())
        except InvalidTag:
            raise ValueError("the authentication tag does not match") from None


def _read_or_make(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written to a temporary file and linked: of two that start at once, one whole key wins.
        new = file.with_name(f"{file.name}.{os.getpid()}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            file.hardlink_to(new)
        new.unlink()
        return file.read_bytes()
