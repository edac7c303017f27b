"""Seals: opened by us, for their owner, unaltered."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.serve.memory.seal import BrokenSealError, Seal

SEAL = Seal.temporary()


@given(st.recursive(st.text() | st.integers(-9, 9), st.lists), st.text(max_size=9))
def test_what_was_sealed_is_read_again(value: object, owner: str) -> None:
    owner = owner.encode("utf-8", "replace").decode()
    value = value if not isinstance(value, str) else value.encode("utf-8", "replace").decode()
    try:
        sealed = SEAL.close(value, owner)
    except (UnicodeEncodeError, ValueError):
        return  # half of a surrogate pair somewhere inside
    assert SEAL.open(sealed, owner) == value


def test_a_seal_hides_what_is_in_it() -> None:
    assert "secret" not in SEAL.close({"text": "secret"}, "alice")
    assert SEAL.close("x", "alice") != SEAL.close("x", "alice")


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_an_altered_seal_does_not_open(position: int, letter: str) -> None:
    sealed = SEAL.close({"text": "a conversation"}, "alice")
    position %= len(sealed)
    altered = sealed[:position] + letter + sealed[position + 1 :]
    if altered.rstrip("=") == sealed.rstrip("="):
        return
    try:
        opened = SEAL.open(altered, "alice")
    except BrokenSealError:
        return
    assert opened == {"text": "a conversation"}  # base64 has letters that say nothing


@pytest.mark.parametrize(
    "text", ["", "sealed1.", "sealed1.AAAA", "gAAAAAB…", "sealed2.AAAA", "sealed1.é", "x" * 5000]
)
def test_what_was_not_sealed_does_not_open(text: str) -> None:
    with pytest.raises(BrokenSealError):
        SEAL.open(text, "alice")


def test_a_seal_opens_for_its_owner_and_under_its_key_only() -> None:
    sealed = SEAL.close("x", "alice")
    with pytest.raises(BrokenSealError):
        SEAL.open(sealed, "bob")
    with pytest.raises(BrokenSealError):
        Seal.temporary().open(sealed, "alice")


def test_a_key_file_is_made_once_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "state" / "seal.key"
    sealed = Seal.from_file(str(file)).close("x", "alice")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Seal.from_file(str(file)).open(sealed, "alice") == "x"
    assert [path.name for path in file.parent.iterdir()] == ["seal.key"]


def test_a_key_file_that_holds_no_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    file.write_bytes(b"short")
    with pytest.raises(UsageError, match="holds 5 bytes; it takes 32"):
        Seal.from_file(str(file))
    with pytest.raises(UsageError, match="cannot be used"):
        Seal.from_file(str(tmp_path))
