"""Real Codex binaries: the wheel's, and npm's of any version, fetched once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from sources.app_server.process.binary import native

WHEEL: Final = "wheel"
KEPT: Final = Path(__file__).parents[2] / ".cache" / "codex"


class MissingCodexError(Exception):
    """There is no such binary here, and it could not be fetched."""


@cache
def _found(version: str) -> str | MissingCodexError:
    """The native binary of a version. A failure is kept too: npm is not asked again and again."""
    try:
        return _from_wheel() if version == WHEEL else _from_npm(version)
    except (MissingCodexError, OSError, subprocess.SubprocessError) as error:
        return MissingCodexError(f"codex {version}: {error}")


def _from_wheel() -> str:
    bundle: Any = import_module("codex_cli_bin")  # it brings no types
    return str(bundle.bundled_codex_path())


def _from_npm(version: str) -> str:
    folder = KEPT / version
    folder.mkdir(parents=True, exist_ok=True)
    launcher = folder / "node_modules" / ".bin" / "codex"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of the tests at once install it once
        if not _is_version(launcher, version):
            _install(folder, version)
        if not _is_version(launcher, version):
            raise MissingCodexError("npm installed it, but it does not run")
    return native(str(launcher))


def _install(folder: Path, version: str) -> None:
    shutil.rmtree(folder / "node_modules", ignore_errors=True)  # npm would keep a broken one
    package = f"@openai/codex@{version}"
    command = ["npm", "install", "--prefix", str(folder), package, "--no-audit", "--no-fund"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603
    if done.returncode != 0:
        raise MissingCodexError(f"npm failed: {done.stderr.strip()[-500:]}")


def _is_version(launcher: Path, version: str) -> bool:
    """Whether the native binary is there, whole, and the one it should be."""
    if not launcher.exists() or native(str(launcher)).endswith(".js"):
        return False
    home = launcher.parents[2] / "home"  # even to tell its version it writes into its home
    home.mkdir(exist_ok=True)
    try:
        said = subprocess.run(  # noqa: S603
            [native(str(launcher)), "--version"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CODEX_HOME": str(home)},
        )
    except OSError:
        return False
    return said.returncode == 0 and said.stdout.split()[-1:] == [version]


@pytest.fixture(scope="session")
def binary_of() -> Callable[[str], str]:
    """The native binary of a version; where there is none, a person's test run goes on."""

    def find(version: str) -> str:
        found = _found(version)
        if isinstance(found, str):
            return found
        if "CI" in os.environ:
            pytest.fail(str(found))
        pytest.skip(str(found))

    return find
