"""`bench`, as people run it: real processes, a little of everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pipeline.assembly import Settings, recipe
from pipeline.bench.stages import transcript
from pipeline.cli.bench import SCENARIOS
from pipeline.cli.main import main
from pipeline.formats.transcripts import read_records


def bench(tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run it quickly, once; what it printed, and what it wrote."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-m", "pipeline", "bench", "--quick", "--rounds", "1"),
            *("--json", str(figures), "--svg", str(tmp_path / "picture.svg"), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(figures.read_text())


def medians(told: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for figure in told["figures"]:
        found.setdefault((figure["scenario"], figure["quantity"]), []).append(figure["median"])
    return found


def test_every_scenario_is_measured_reported_and_drawn(tmp_path: Path) -> None:
    printed, told = bench(tmp_path)
    found = medians(told)
    assert {scenario for scenario, _ in found} == {"machine", *SCENARIOS}
    assert all(f"\n{name}: S" in printed for name in SCENARIOS)
    assert found["storm", "each interrupted once"] == [1.0]
    assert found["storm", "files left open"][0] <= 0
    assert min(found["burst", "CPU a chunk"][:-1]) > 1
    assert len(found["burst", "chunks"]) == 5
    assert all(value > 0 for value in found["paced", "CPU a chunk"])
    assert found["cold", "memory at rest"][0] > 10
    assert told["about"]["backend"] == "fake"
    picture = ET.fromstring((tmp_path / "picture.svg").read_text())  # noqa: S314
    assert picture.tag.endswith("svg")


def test_the_real_codex_can_be_measured_too(tmp_path: Path) -> None:
    _, told = bench(tmp_path, "--real", "ttft", "burst")
    found = medians(told)
    assert {scenario for scenario, _ in found} == {"machine", "ttft", "burst"}
    assert 0 < found["burst", "of the direct rate"][0] < 2
    assert told["about"]["backend"] == "codex"


def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = f"bench-test-{tmp_path.name}"
    running = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "bench", "--rounds", "1", "paced"],
        env={**os.environ, "MARKED": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: len(marked(mark)) >= 3)  # the benchmark, the server, the backend
    running.terminate()
    told, _ = running.communicate(timeout=30)
    assert (running.returncode, b"interrupted: these are the results" in told) == (130, True)
    until(lambda: not marked(mark))


def marked(mark: str) -> list[int]:
    """The processes that have inherited a mark in their environment."""
    found: list[int] = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"MARKED={mark}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_the_stages_are_measured_without_a_server(tmp_path: Path) -> None:
    printed, told = bench(tmp_path, "stages")
    loads = {figure["load"] for figure in told["figures"]}
    stages = {f"stage {name}" for name in recipe(Settings()).names}
    assert {"decode", "encode", *stages} <= loads
    assert "events on one core" in printed


def test_the_benchmark_measures_a_turn_that_is_one() -> None:
    said = [record.message["params"].get("delta") for record in read_records(transcript(12))]
    assert "".join(filter(None, said)).startswith("Hello wörld a < b, and so on.\n<b>no</b> Hello")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "unknown scenario speed; the scenarios are ttft, paced"),
        (["--rounds", "0"], "--rounds must be 1 or more (got 0)"),
        (["--real", "held"], "--real measures ttft, paced, burst; name one of them"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
