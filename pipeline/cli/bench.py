"""`bench`: measures the overhead of the server compared with its backend alone."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import trio

from pipeline.cli.flags import add_settings, settings_from
from pipeline.errors import UsageError
from pipeline.terminal import Paint

HELP = "measure the overhead of the server compared with its backend alone"
SCENARIOS = {
    "ttft": "S1  the time to first token that the server adds",
    "paced": "S2  the transit time of a chunk when chunks come one by one",
    "burst": "S3  chunks at full speed, 1, 16 and 128 streams at once",
    "held": "S4  1,000 quiet streams: memory and jitter",
    "stalled": "S5  how stalled readers affect the others",
    "storm": "S6  how soon turns end when all their clients disconnect at once",
    "whole": "S7  answers that are not streamed",
    "cold": "S8  a new process: its start, its memory, its CPU when idle",
}
STAGES = "stages"
ENDED_EARLY = 130
"""The status of a command that was interrupted."""
DESCRIPTION = f"""\
Start the server as a user does, put the same load on it over HTTP and on its backend directly, and
show the difference: medians of several rounds, because machines are noisy. The backend is a fake
with almost no cost of its own, or with --real the real Codex on such a model; no login, no network.
CPU is that of the server process alone, as the kernel counts it.

{chr(10).join(f"  {name:<8} {says}" for name, says in SCENARIOS.items())}
  {STAGES:<8}     the CPU that each stage takes for an event, without a server

Without a name, S1 to S8 are measured, which takes about four minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: S1 to S8")
    parser.add_argument(
        "--real", action="store_true", help="measure S1, S2 and S3 with the real Codex"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds of each scenario (5)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="very small loads, only to try whether it works"
    )
    parser.add_argument("--json", metavar="FILE", help="write all samples as JSON")
    parser.add_argument("--svg", metavar="FILE", help="write the distributions as a picture")
    parser.add_argument(
        "--deltas", type=int, default=20_000, metavar="N", help="text deltas for `stages` (20000)"
    )
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    names: list[str] = options.scenarios or [*SCENARIOS]
    for name in names:
        if name not in (*SCENARIOS, STAGES):
            known = ", ".join((*SCENARIOS, STAGES))
            raise UsageError(f"unknown scenario {name}; the scenarios are {known}")
    if options.rounds < 1:
        raise UsageError(f"--rounds must be 1 or more (got {options.rounds})")
    before = _busy()
    results, whole = _measured(options, names)
    early = [] if whole else ["interrupted: these are the results up to then"]
    _report(options, results, [*before, *_busy(), *early])
    return 0 if whole else ENDED_EARLY


def _measured(options: argparse.Namespace, names: list[str]) -> tuple[Any, bool]:
    """The results, and whether they are complete."""
    # Imported late: the loads and the stages take long to import.
    results_module: Any = import_module("pipeline.bench.results")
    results, whole = results_module.Results(judged=not options.quick), True
    if STAGES in names:
        stages: Any = import_module("pipeline.bench.stages")
        deltas = 500 if options.quick else options.deltas
        stages.measure(settings_from(options), deltas, options.rounds, results, _progress())
    if others := [name for name in names if name != STAGES]:
        import_module("pipeline.bench.process_usage").check_platform()
        plan: Any = import_module("pipeline.bench.plan")
        if options.real:
            others = [name for name in others if name in plan.REAL]
            if not others:
                raise UsageError(f"--real measures {', '.join(plan.REAL)}; name one of them")
        chosen = plan.Plan(others, options.rounds, quick=options.quick, real=options.real)
        whole = trio.run(chosen.run, results, _progress())
    return results, whole


def _report(options: argparse.Namespace, results: Any, warnings: list[str]) -> None:
    report: Any = import_module("pipeline.bench.report")
    titles = {
        **SCENARIOS,
        STAGES: "the CPU for an event from the backend's line to the client's bytes",
        "machine": "the current speed of this machine, as a reference for all other figures",
    }
    for warning in dict.fromkeys(warnings):
        print(warning)
    print(report.table(results, titles=titles, paint=Paint(sys.stdout)))
    if options.json:
        about = {
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "rounds": options.rounds,
            "backend": "codex" if options.real else "fake",
            "warnings": warnings,
        }
        report.write_json(options.json, results, about)
    if options.svg:
        import_module("pipeline.bench.picture").write_svg(options.svg, results)


def _busy() -> list[str]:
    """A warning if other programs use the machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores * 0.75:
        return []
    return [f"the machine is busy (load {load:.1f} on {cores} cores): only ratios are reliable"]


def _progress() -> Callable[[str], None]:
    """Shows the progress on a terminal."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda doing: print(f"\r\x1b[K{doing}", end="", file=sys.stderr, flush=True)
