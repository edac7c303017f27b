"""Real Codex binaries, the scripted model behind them, and ways to run turns on both."""

from __future__ import annotations

import base64
import json
import struct
import sys
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import trio
from attrs import evolve

from pipeline import assembly
from pipeline.assembly import Settings, chat_options
from pipeline.events import Event
from pipeline.loose_json import Json
from pipeline.recipe import Pipeline
from pipeline.turn import Turn
from sinks.chat import ChatCompletion, ChatJson
from sinks.collect import Collect
from sources.app_server.process.options import BackendOptions
from sources.app_server.process.pool import Pool, open_pool
from sources.app_server.turn.source import AppServerSource
from sources.demo.model import ScriptedModel
from sources.demo.provider import scripted_provider
from tests.support.codex_binaries import WHEEL, binary_of

__all__ = ["binary_of"]  # a fixture

VERSIONS: Final = (WHEEL, "0.166.0", "0.89.0")
"""The binary this project is pinned to, the newest one, and the oldest one that it understands."""
LONG_ENOUGH: Final = 60.0
SERVER: Final = Path(__file__).parents[1] / "support" / "mcp_server.py"
PNG: Final = b"\x89PNG\r\n\x1a\n"
SOON: Final = 10.0

Ask: TypeAlias = Callable[[Pool, Turn], Awaitable[ChatCompletion]]
Watch: TypeAlias = Callable[[Pool, Turn], Awaitable[list[Event]]]
Until: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
OpenCodex: TypeAlias = Callable[..., AbstractAsyncContextManager[Pool]]


# -- binaries --------------------------------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Every version in turn; a module that wants one alone has a fixture of its own."""
    return str(request.param)


@pytest.fixture
def codex(version: str, binary_of: Callable[[str], str]) -> str:
    return binary_of(version)


# -- the model and the backend ---------------------------------------------------------------------


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def model_url(model: ScriptedModel) -> AsyncGenerator[str]:
    async with model.serving() as url:
        yield url


@pytest.fixture
def overrides(version: str, model_url: str) -> dict[str, str]:
    """What makes a child of this version use the scripted model."""
    chosen = scripted_provider(model_url)
    if version == "0.89.0":
        # It asks for the list of models at every thread, and waits seconds where nobody answers.
        chosen["features.remote_models"] = "false"
    return chosen


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Somebody's CODEX_HOME, who uses an MCP server."""
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, str(SERVER), str(tmp_path / "mcp.log")]
    config = ["[mcp_servers.shouter]", f"command = {json.dumps(command[0])}"]
    (home / "config.toml").write_text("\n".join([*config, f"args = {json.dumps(command[1:])}", ""]))
    return home


@pytest.fixture
def open_codex(codex: str, overrides: dict[str, str]) -> OpenCodex:
    """Opens a backend on the binary, with the scripted model, and whatever options are given."""

    def opened(**options: Any) -> AbstractAsyncContextManager[Pool]:
        chosen = BackendOptions(codex=codex, overrides=overrides)
        return open_pool(evolve(chosen, **options))

    return opened


@pytest.fixture
async def backend(open_codex: OpenCodex) -> AsyncGenerator[Pool]:
    async with open_codex() as pool:
        yield pool


@pytest.fixture
def until() -> Until:
    """Waits for something that is about to happen."""

    async def wait(happened: Callable[[], bool]) -> None:
        with trio.fail_after(SOON):
            while not happened():  # noqa: ASYNC110  (what is waited for is a counter)
                await trio.sleep(0.01)

    return wait


# -- turns -----------------------------------------------------------------------------------------


@pytest.fixture
def said() -> Callable[..., Turn]:
    """A turn of which the last word is the user's."""

    def turn(words: str | list[Json], *earlier: Json, **more: Any) -> Turn:
        last: Json = {"type": "message", "role": "user", "content": words}
        return evolve(Turn(model="gpt-5", items=(*earlier, last)), **more)

    return turn


@pytest.fixture
def picture() -> str:
    """One red pixel, as the address of an image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\xff\0\0")
    whole = PNG + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(whole).decode()}"


async def _ask(backend: Pool, turn: Turn, settings: Settings | None = None) -> ChatCompletion:
    settings = settings or Settings()
    sink = ChatJson(chat_options(settings, turn))
    with trio.fail_after(LONG_ENOUGH):
        return await assembly.recipe(settings).run(AppServerSource(backend), sink, turn)


async def _watch(backend: Pool, turn: Turn, recipe: Pipeline) -> list[Event]:
    with trio.fail_after(LONG_ENOUGH):
        return await recipe.run(AppServerSource(backend), Collect(), turn)


@pytest.fixture
def ask() -> Ask:
    """Runs a turn through the whole pipeline, to the body that a client gets."""
    return _ask


@pytest.fixture
def watch() -> Watch:
    """Runs a turn without any stage, to the very events of the source."""
    return partial(_watch, recipe=Pipeline())
