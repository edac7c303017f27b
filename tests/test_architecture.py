"""The rules of the house that a reader relies on, checked."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipeline", "stages", "sinks", "sources")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_FILE_OF_TESTS = 400, 50, 500
VOCABULARY = {
    "pipeline.formats.call_shapes",
    "pipeline.formats.content",
    "pipeline.formats.custom_tools",
    "pipeline.errors",
    "pipeline.events",
    "pipeline.ledger",
    "pipeline.loose_json",
    "pipeline.options",
    "pipeline.formats.images",
    "pipeline.formats.recording",
    "pipeline.stage",
    "pipeline.formats.strict_schema",
    "pipeline.formats.transcripts",
    "pipeline.turn",
    "pipeline.formats.use_tool",
}


def files_of(package: str) -> list[Path]:
    found = [path for path in SOURCES if path.is_relative_to(ROOT / package)]
    assert len(found) > 5, "a law about no files holds for ever"
    return found


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", ["stages", "sinks", "sources"])
def test_parts_know_the_vocabulary_and_their_own_package_only(package: str) -> None:
    for path in files_of(package):
        own = {name for name in imports(path) if name.split(".")[0] in PACKAGES}
        strangers = {name for name in own if not name.startswith(f"{package}.")} - VOCABULARY
        assert not strangers, f"{path.relative_to(ROOT)} imports {strangers}"


def test_the_vocabulary_knows_only_itself() -> None:
    for module in VOCABULARY:
        path = ROOT / f"{module.replace('.', '/')}.py"
        own = {name for name in imports(path) if name.split(".")[0] in PACKAGES}
        assert own <= VOCABULARY, f"{module} imports {own - VOCABULARY}"


def test_stages_are_pure() -> None:
    for path in files_of("stages"):
        impure = {"trio", "time", "logging", "structlog", "os", "socket", "random"}
        assert not imports(path) & impure, path.name


def test_channels_are_opened_in_one_file() -> None:
    ours = [path for path in SOURCES if path.name != "baseline.py"]  # it measures trio alone
    opening = [path.name for path in ours if "open_memory_channel" in path.read_text()]
    assert opening == ["chain.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_tests_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LONGEST_FILE_OF_TESTS


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_runs(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 40
    done = subprocess.run(  # noqa: S603
        [sys.executable, example], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    expected = {
        "one_turn.py": "the model says: The tool said: 12 °C, rain",
        "replay_in_code.py": '"finish_reason": "tool_calls"',
        "swap_a_stage.py": "name='readNote'",
        "write_a_stage.py": "Write to [address] or call.\n",
    }
    assert expected[example.name] in done.stdout


def test_the_swapped_stage_drops_the_repeated_tool() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, ROOT / "examples" / "swap_a_stage.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert re.findall(r"ToolCall\(call_id='(\w+)'", done.stdout) == ["call_a", "call_b"]


def test_the_constraints_name_no_address_and_pin_every_hash() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    pins = re.findall(r"^[a-z0-9_.-]+==\S+", text, re.MULTILINE)
    assert len(pins) > 20
    assert text.count("--hash=sha256:") >= len(pins)


def test_the_lock_of_the_node_clients_names_no_address_and_pins_every_hash() -> None:
    lock = json.loads((ROOT / "tests" / "edge" / "node" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 20
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name
