"""API keys: named, kept as hashes and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from pathlib import Path
from typing import Final

from attrs import frozen

from pipeline.errors import ProxyError, UsageError, rejection
from pipeline.options import server_flag as flag

ANYBODY: Final = "anybody"
"""The name of every caller if no keys are configured."""
SHORTEST_KEY: Final = 20
FEWEST_LETTERS: Final = 8
HOW_TO_MAKE_A_KEY: Final = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"


@frozen(slots=False)
class AccessOptions:
    """API keys, the metrics token, and the allowed origins."""

    api_keys: str = flag(
        "PROXY_API_KEYS",
        "",
        "the API keys of the clients, as name:key separated by commas; none are needed on loopback",
        secret=True,
    )
    api_keys_file: str = flag(
        "PROXY_API_KEYS_FILE", "", "a file with one name:key on each line, instead or in addition"
    )
    metrics_token: str = flag(
        "PROXY_METRICS_TOKEN",
        "",
        "the bearer token for /metrics; without one, only loopback may read it",
        secret=True,
    )
    cors_origins: str = flag(
        "PROXY_CORS_ORIGINS",
        "app://obsidian.md,capacitor://localhost,http://localhost",
        "the origins whose pages may call the server, separated by commas; without a port: "
        "any port; *: every origin",
    )


class Keys:
    """The API keys of one server. Without keys, every caller is admitted."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}
        self.weak = sorted(name for name, key in keys.items() if _is_weak(key))

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._digests) or (ANYBODY,)

    @classmethod
    def from_settings(cls, settings: AccessOptions) -> Keys:
        written = [("PROXY_API_KEYS", part) for part in settings.api_keys.split(",")]
        if settings.api_keys_file:
            source = f"PROXY_API_KEYS_FILE={settings.api_keys_file}"
            try:
                lines = Path(settings.api_keys_file).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{source} cannot be read: {error}") from None
            written += [(source, line) for line in lines.splitlines() if not line.startswith("#")]
        keys: dict[str, str] = {}
        for source, entry in written:
            name, separator, key = (part.strip() for part in entry.strip().rpartition(":"))
            if not key:
                if separator:
                    raise UsageError(f"{source}: {name!r} has no key; write it as {name}:KEY")
                continue
            # Named by hash and not by position: removing one key must not rename the others.
            name = name or f"key-{_digest(key).hex()[:8]}"
            if name in keys:
                raise UsageError(f"{source}: two keys are named {name!r}; names must differ")
            keys[name] = key
        return cls(keys)

    def caller(self, authorization: str | None) -> str:
        """The name of the key in an Authorization header; ProxyError if it is missing or wrong."""
        if not self._digests:
            return ANYBODY
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise unauthorized("no API key was sent; send it as `Authorization: Bearer KEY`")
        digest, found = _digest(key.strip()), ""
        for name, known in self._digests.items():  # always all of them: constant time
            if hmac.compare_digest(known, digest):
                found = name
        if not found:
            raise unauthorized("this API key is not valid; ask the operator of the server for one")
        return found


def check_exposure(host: str, keys: Keys) -> None:
    """Refuse to listen on a public address without strong API keys."""
    if is_loopback(host):
        return
    if not len(keys):
        raise UsageError(
            f"PROXY_HOST={host} is not loopback, so PROXY_API_KEYS must be set; "
            f"{HOW_TO_MAKE_A_KEY} makes a key"
        )
    if keys.weak:
        raise UsageError(
            f"PROXY_HOST={host} is not loopback, and the key of {', '.join(keys.weak)} "
            f"is easy to guess; {HOW_TO_MAKE_A_KEY} makes a good one"
        )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def same_secret(given: str, secret: str) -> bool:
    return hmac.compare_digest(_digest(given), _digest(secret))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_weak(key: str) -> bool:
    return len(key) < SHORTEST_KEY or len(set(key)) < FEWEST_LETTERS


def unauthorized(message: str) -> ProxyError:
    return rejection(message, status=401, code="invalid_api_key")
