"""What the README promises, tried."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.flags import flag_of, setting_fields, shown
from pipeline.settings import Settings, choices

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """The table of settings as the README must have it."""
    rows = ["| variable, flag | default | takes | what it does |", "|---|---|---|---|"]
    for field in setting_fields():
        default = f"`{shown(field.default)}`" if field.default != "" else ""
        help_text = field.metadata["help"].replace("<", "\\<")
        takes = choices(field).replace("|", "\\|")
        names = f"`{field.metadata['env']}` `{flag_of(field)}`"
        rows.append(f"| {names} | {default} | {takes} | {help_text} |")
    return "\n".join(rows)


def test_the_table_of_settings_is_the_settings() -> None:
    found = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == settings_table()


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
        assert re.search(rf"^stage {name} +\d", found[1], re.MULTILINE), name


def test_there_are_commands_to_try() -> None:
    assert len(commands()) >= 5


def test_the_readmes_own_stage_works() -> None:
    (program,) = blocks("python")
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
