"""Keys: who is let in, and where they must be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.assembly import Settings
from pipeline.errors import ProxyError, UsageError
from pipeline.serve.access.auth import ANYBODY, Keys, check_exposure, is_loopback

GOOD = "k7Qz-2m9Xw-41bVtRp8LcYd"


def keys(text: str) -> Keys:
    return Keys.from_settings(Settings(api_keys=text))


def test_without_keys_everybody_is_let_in() -> None:
    assert keys("").caller(None) == ANYBODY
    assert keys(" , ").names == (ANYBODY,)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Bearer one", "alice"),
        ("bearer  one", "alice"),
        ("Bearer two:2", "bob"),
        ("Bearer three", "key-3"),
    ],
)
def test_a_key_has_its_owners_name(header: str, name: str) -> None:
    known = Keys({"alice": "one", "bob": "two:2", "key-3": "three"})
    assert known.caller(header) == name


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic one", "one", "Bearer On"])
def test_a_client_without_a_key_learns_how_to_send_one(header: str | None) -> None:
    with pytest.raises(ProxyError) as refused:
        keys("alice:one").caller(header)
    assert refused.value.failure.status == 401
    assert refused.value.failure.code == "invalid_api_key"


def test_names_are_optional_and_must_differ() -> None:
    first, second, third = keys("one,alice:two, three").names
    assert second == "alice"
    assert first != third
    assert keys("three").names == (third,)  # whatever else there is
    with pytest.raises(UsageError, match="two keys are named 'a'"):
        keys("a:one,a:two")
    with pytest.raises(UsageError, match="'a' has no key"):
        keys("a:")


def test_a_file_may_hold_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nalice:one\n\nbob:two\n")
    known = Keys.from_settings(Settings(api_keys="carol:three", api_keys_file=str(file)))
    assert known.names == ("carol", "alice", "bob")
    with pytest.raises(UsageError, match="cannot be read"):
        Keys.from_settings(Settings(api_keys_file=str(tmp_path / "none")))


def test_no_key_can_be_read_out_of_the_keys() -> None:
    known = Keys({"alice": GOOD})
    assert GOOD not in repr(vars(known))
    assert GOOD not in repr(Settings(api_keys=f"alice:{GOOD}"))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("127.0.0.1.example.org", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_its_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_strangers_are_kept_out_by_keys_that_cannot_be_guessed() -> None:
    check_exposure("127.0.0.1", keys(""))
    check_exposure("192.0.2.1", keys(f"a:{GOOD}"))
    with pytest.raises(UsageError, match="PROXY_API_KEYS must be set"):
        check_exposure("192.0.2.1", keys(""))
    for weak in ("short", "a" * 40, "abc" * 12):
        with pytest.raises(UsageError, match="the key of a is easy to guess"):
            check_exposure("192.0.2.1", keys(f"a:{weak},b:{GOOD}"))
