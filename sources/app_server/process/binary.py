"""Finds the Codex program to run."""

from __future__ import annotations

import os
import shutil
import stat
from importlib import import_module
from pathlib import Path

from pipeline.errors import UsageError

HINT = "install it with `pip install openai-codex-cli-bin` or `npm install -g @openai/codex`"


def find_codex(wanted: str = "") -> str:
    """The given program, else `codex` on the PATH, else the one of the Python wheel."""
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise UsageError(f"CODEX_BIN={wanted}: no such program; {HINT}")
        return native(str(Path(found).absolute()))  # absolute: the child has another folder
    on_path = shutil.which("codex")
    if on_path is not None:
        return native(on_path)
    try:
        bundle = import_module("codex_cli_bin")  # an optional wheel
    except ImportError:
        raise UsageError(f"no codex on the PATH and none installed as a wheel; {HINT}") from None
    return str(bundle.bundled_codex_path())


def native(path: str) -> str:
    """The native program behind npm's launcher, which is a Node process that keeps the signals."""
    launcher = Path(path).resolve()
    if launcher.suffix != ".js":
        return path
    package = launcher.parent.parent
    patterns = ("vendor/*/**/codex", "../codex-*/vendor/*/bin/codex")
    candidates = [found for pattern in patterns for found in package.glob(pattern)]
    machine = os.uname().machine.replace("arm64", "aarch64")
    system = os.uname().sysname.lower()
    for candidate in candidates:
        parts = "/".join(candidate.parts)
        executable = candidate.is_file() and candidate.stat().st_mode & stat.S_IXUSR
        if executable and machine in parts and (system in parts or "darwin" in parts):
            return str(candidate)
    return path
