"""What the README promises, tried."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.bench.plan import REAL
from pipeline.cli.bench import SCENARIOS
from pipeline.cli.settings import as_env, as_markdown
from pipeline.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_of_settings_is_the_settings() -> None:
    found = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == as_markdown()


def test_the_example_of_an_environment_is_the_settings() -> None:
    assert (ROOT / ".env.example").read_text() == as_env() + "\n"


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


def test_the_costs_are_told_for_every_stage() -> None:
    found = re.search(r"<!-- bench -->\n(.*?)\n<!-- /bench -->", README, re.DOTALL)
    assert found is not None
    for name in Settings().pipeline().names:
        assert re.search(rf"^ *stage {name} +CPU an event +\d", found[1], re.MULTILINE), name


@pytest.mark.parametrize(("block", "scenarios"), [("cost", SCENARIOS), ("real", REAL)])
def test_the_costs_are_told_for_every_scenario(block: str, scenarios: Iterable[str]) -> None:
    found = re.search(rf"<!-- {block} -->\n(.*?)\n<!-- /{block} -->", README, re.DOTALL)
    assert found is not None
    for name in scenarios:
        assert f"\n{name}: S" in found[1], name


def test_there_are_commands_to_try() -> None:
    assert len(commands()) >= 5


def test_the_readmes_own_stage_works() -> None:
    (program,) = (block for block in blocks("python") if "pipeline" in block)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "TextDelta(text='HELLO'" in done.stdout


def test_every_file_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_makefile_has_the_readmes_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target
