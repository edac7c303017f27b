"""The real Codex as a backend, with a model of almost no CPU cost."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from pipeline.bench.direct import Direct
from pipeline.bench.testbed import ServerTestbed, running, served
from pipeline.errors import UsageError
from sources.app_server.process.binary import find_codex
from sources.app_server.process.catalog import write_catalog
from sources.app_server.process.hermetic import Confinement
from sources.demo.provider import scripted_provider

FAST_MODEL: Final = (sys.executable, "-m", "pipeline.bench.fast_model")


@asynccontextmanager
async def real_testbed() -> AsyncGenerator[ServerTestbed]:
    """A server in front of the real Codex, and beside it a Codex that is read directly."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        model = await stack.enter_async_context(running([*FAST_MODEL], subprocess.PIPE))
        overrides = scripted_provider(await _address(model))
        codex = find_codex("")
        homes = [folder / "server", folder / "direct"]
        for home in homes:
            home.mkdir()
            settings = "".join(f"{key} = {value}\n" for key, value in overrides.items())
            (home / "config.toml").write_text(settings, encoding="utf-8")
        began = time.monotonic()
        server = await stack.enter_async_context(
            served({"CODEX_HOME": str(homes[0]), "CODEX_BIN": codex})
        )
        started = time.monotonic() - began
        confined = Confinement(home=homes[1], workspace=folder)
        environment = confined.environment()
        catalog = await write_catalog(codex, environment, folder / "models.json", refresh=False)
        command = confined.command(codex, catalog=catalog)
        direct = await stack.enter_async_context(Direct.started(command, environment))
        yield ServerTestbed(server, direct, folder / "backend.jsonl", started)


async def _address(model: trio.Process) -> str:
    """The URL that the model prints."""
    assert model.stdout is not None  # noqa: S101
    with trio.fail_after(10.0):
        said = bytes(await model.stdout.receive_some())
    if not said:
        raise UsageError("the model behind Codex did not start")
    return said.decode().strip()
