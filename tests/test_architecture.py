"""The rules of the house that a reader relies on, checked."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipeline", "stages", "sinks", "sources")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_FILE_OF_TESTS = 400, 50, 500
FRAME = {
    "pipeline.chain",
    "pipeline.tasks",
    "pipeline.errors",
    "pipeline.events",
    "pipeline.ledger",
    "pipeline.loose_json",
    "pipeline.options",
    "pipeline.recipe",
    "pipeline.segment",
    "pipeline.stage",
    "pipeline.turn",
}
FORMATS = {
    f"pipeline.formats.{path.stem}"
    for path in (ROOT / "pipeline" / "formats").glob("*.py")
    if path.stem != "__init__"
}
SHARED = FRAME | FORMATS
MAY_ASSEMBLE = ("assembly", "bench", "cli", "serve", "workers")


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
            if "." not in node.module:  # from pipeline import assembly
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(tree: ast.AST, modules: Collection[str]) -> set[str]:
    """Which of our modules are imported anywhere in a file, however late, and for types too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            package = node.module or ""
            for alias in node.names:
                inner = f"{package}.{alias.name}"
                found.add(inner if inner in modules else package)
    return found & set(modules)


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("package", ["stages", "sinks", "sources"])
def test_parts_import_only_the_frame_the_formats_and_their_own_package(package: str) -> None:
    for path in files_of(package):
        others = {name for name in ours(path) if not name.startswith(f"{package}.")} - SHARED
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


@pytest.mark.parametrize("module", sorted(SHARED))
def test_the_frame_and_the_formats_import_only_each_other(module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert ours(path) <= SHARED, f"{module} imports {ours(path) - SHARED}"


def circle_in(graph: Mapping[str, set[str]]) -> str | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " is imported by ".join(error.args[1])
    return None


def test_no_modules_import_each_other_in_a_circle() -> None:
    trees = {module_of(path): ast.parse(path.read_text()) for path in SOURCES}
    graph = {module: modules_imported(tree, trees) - {module} for module, tree in trees.items()}
    assert sum(map(len, graph.values())) > 500, "a law about no imports holds for ever"
    assert circle_in(graph) is None


@pytest.mark.parametrize(
    "back",
    [
        "import a.b",
        "from a import b",
        "from a.b import name",
        "def late():\n    from a.b import name",
        "if TYPE_CHECKING:\n    from a.b import name",
    ],
)
def test_a_circle_is_found_however_it_is_hidden(back: str) -> None:
    modules = {"a": "from a.b import name", "a.b": "from c import name", "c": back}
    graph = {name: modules_imported(ast.parse(text), modules) for name, text in modules.items()}
    assert circle_in(graph) is not None
    assert circle_in(graph | {"c": set()}) is None


def test_the_frame_imports_no_format() -> None:
    for module in FRAME:
        assert not ours(ROOT / f"{module.replace('.', '/')}.py") & FORMATS, module


def test_only_programs_import_the_assembly() -> None:
    allowed = [ROOT / "pipeline" / name for name in MAY_ASSEMBLE]
    for path in SOURCES:
        if not any(path.is_relative_to(folder) for folder in allowed):
            found = {name for name in ours(path) if name.startswith("pipeline.assembly")}
            assert not found, f"{path.relative_to(ROOT)} imports {found}"


@pytest.mark.parametrize("api", ["chat", "responses", "shared"])
def test_the_requests_of_one_api_do_not_import_those_of_the_other(api: str) -> None:
    own = f"pipeline.requests.{api}"
    for path in (ROOT / "pipeline" / "requests" / api).glob("*.py"):
        requests = {name for name in ours(path) if name.startswith("pipeline.requests.")}
        other = {n for n in requests if not n.startswith((own, "pipeline.requests.shared"))}
        assert not other, f"{path.relative_to(ROOT)} imports {other}"


@pytest.mark.parametrize("folder", ["assembly", "formats", "requests", "serve/http"])
def test_nothing_is_imported_late_or_for_types_only(folder: str) -> None:
    for path in (ROOT / "pipeline" / folder).rglob("*.py"):
        text = path.read_text()
        assert "TYPE_CHECKING" not in text, path.name
        tree = ast.parse(text)
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        assert all(node in tree.body for node in found), path.name


def test_stages_are_pure() -> None:
    for path in files_of("stages"):
        impure = {"trio", "time", "logging", "structlog", "os", "socket", "random"}
        assert not imports(path) & impure, path.name


def test_channels_are_opened_in_one_file() -> None:
    ours = [path for path in SOURCES if path.name != "baseline.py"]  # it measures trio alone
    opening = [path.name for path in ours if "open_memory_channel" in path.read_text()]
    assert opening == ["tasks.py"]


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


def run_example(name: str) -> subprocess.CompletedProcess[str]:
    """Run an example on the packages that are beside it, wherever others are installed."""
    return subprocess.run(  # noqa: S603
        [sys.executable, ROOT / "examples" / name],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_runs(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 40
    done = run_example(example.name)
    assert done.returncode == 0, done.stderr
    expected = {
        "one_turn.py": "the model says: The tool said: 12 °C, rain",
        "replay_in_code.py": '"finish_reason": "tool_calls"',
        "swap_a_stage.py": "name='readNote'",
        "write_a_stage.py": "Write to [address] or call.\n",
    }
    assert expected[example.name] in done.stdout


def test_the_swapped_stage_drops_the_repeated_tool() -> None:
    done = run_example("swap_a_stage.py")
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
