"""What the README promises, tried."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.cli.settings import as_env
from pipeline.serve.running import serving
from tests.serve.scripted import CHAT, ScriptedBackend, body

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 2_500


def test_the_example_of_an_environment_can_be_loaded_and_means_the_defaults() -> None:
    switched_on = re.sub(r"^#(?=[A-Z])", "", as_env(), flags=re.MULTILINE)
    loaded = subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", f"set -a\n{switched_on}\nenv -0"],
        capture_output=True,
        check=True,
        env={},
    ).stdout.decode()
    variables = dict(line.split("=", 1) for line in loaded.split("\0") if line)
    assert len(variables) > 40
    assert Settings.from_env(variables) == Settings()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [
        line.partition("#")[0].strip()
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("python -m pipeline") and "bench" not in line
    ]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_works_as_it_stands(command: str) -> None:
    assignment = re.search(r"^FILE=(\S+)$", README, re.MULTILINE)
    assert assignment is not None
    bare = command.replace("python", shlex.quote(sys.executable), 1)
    done = subprocess.run(  # noqa: S602
        bare,
        shell=True,
        cwd=ROOT,
        env=os.environ | {"FILE": assignment[1]},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_table_of_stages_is_the_recipe() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", README.partition("| stage |")[2], re.MULTILINE)
    assert (
        tuple(rows[: len(assembly.recipe(Settings()).names)]) == assembly.recipe(Settings()).names
    )


def test_the_picture_of_the_pipeline_has_the_stages_in_order() -> None:
    names = assembly.recipe(Settings()).names
    picture, ways = (block for block in blocks("text") if names[0] in block)
    (line,) = (line for line in picture.splitlines() if names[0] in line)
    assert tuple(line.split(" ▶ ")) == (f"          {names[0]}", *names[1:])
    unfused = re.findall(r"\[(\w+)\]", ways)
    assert unfused == [*names[:2], names[-1]]
    assert f"[{', '.join(names[:3])}, … {names[-1]}]" in ways


def test_the_readmes_configuration_of_codex_is_toml_with_one_provider() -> None:
    (block,) = blocks("toml")
    config = tomllib.loads(block)
    assert [*config["model_providers"]] == [config["model_provider"]]
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:11435/v1"
    assert provider["wire_api"] == "responses"


def test_there_are_commands_to_try() -> None:
    assert len(commands()) >= 5


def test_the_readmes_own_stage_works() -> None:
    (program,) = (block for block in blocks("python") if "pipeline" in block)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    text, end = done.stdout.splitlines()
    assert text.startswith("TextDelta(text='HELLO'")
    assert end.startswith("TurnEnd(reason='completed'")


def test_the_makefile_has_the_readmes_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make ([\w-]+)", README, re.MULTILINE)
    assert {*targets} >= {"run", "test"}
    for target in targets:
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target


async def test_the_readmes_own_stage_can_be_served() -> None:
    (program,) = (block for block in blocks("python") if "pipeline" in block)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  # the README's own
    settings = Settings(port=0, store=":memory:", shutdown_grace=0.0)
    async with serving(settings, names["pipeline"], backend=ScriptedBackend()) as running:
        with trio.fail_after(10):
            async with httpx.AsyncClient(base_url=running.url) as client:
                answer = await client.post(CHAT, json=body())
    assert answer.json()["choices"][0]["message"]["content"] == "HELLO, WORLD"


@pytest.mark.parametrize(
    ("variable", "default"),
    re.findall(r"^\| `([A-Z_]+)` \| `?(.*?)`? \|", README, re.MULTILINE),
)
def test_a_default_in_the_readme_is_the_default(variable: str, default: str) -> None:
    (field,) = (field for field in attrs.fields(Settings) if field.metadata["env"] == variable)
    usual = {"CODEX_HOME": "~/.codex"}.get(variable, str(field.default))
    assert default == (usual or "none")
