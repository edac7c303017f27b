"""What the parent of the workers provides for all of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pipeline.workers import serving


@pytest.mark.parametrize(
    ("memory", "megabytes", "where"),
    [("memory", 1.0, "memory"), ("none", 1.0, "usual"), ("memory", 1e9, "usual")],
    ids=["room", "no such place", "no room"],
)
def test_what_is_kept_for_now_is_in_memory_where_there_is_room(
    memory: str, megabytes: float, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("memory", "usual"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(serving, "MEMORY", str(tmp_path / memory))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "usual"))
    with serving.kept_for_now(megabytes) as store:
        folder = Path(store).parent
        assert folder.parent == tmp_path / where
        assert folder.stat().st_mode & 0o777 == 0o700
        Path(store).touch()
    assert not folder.exists()
