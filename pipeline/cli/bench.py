"""`bench`: what the server costs, against its backend alone."""

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
from pipeline.cli.terminal import Paint
from pipeline.errors import UsageError

HELP = "measure what the server costs, against its backend alone"
SCENARIOS = {
    "ttft": "S1  the time to the first token that the server adds",
    "paced": "S2  how long a chunk is under way when chunks come one by one",
    "burst": "S3  chunks as fast as they go, 1, 16 and 128 streams at once",
    "held": "S4  1,000 quiet streams: memory and jitter",
    "stalled": "S5  what healthy readers notice of stalled ones",
    "storm": "S6  how soon turns end whose clients all left at once",
    "whole": "S7  answers that are not streamed",
    "cold": "S8  a new process: its start, its memory, its rest",
}
STAGES = "stages"
ENDED_EARLY = 130
"""The status of a command that was interrupted."""
DESCRIPTION = f"""\
Start the server as everybody does, put loads on it over HTTP and on its backend directly, one after
the other, and tell the difference: medians of several rounds, because machines are noisy. The
backend is a fake that costs next to nothing, or with --real the real Codex on a model that does; no
login, no network. CPU is the server process's own, from the kernel's books.

{chr(10).join(f"  {name:<8} {says}" for name, says in SCENARIOS.items())}
  {STAGES:<8}     the CPU of an event in each stage, without a server

Without a name, S1 to S8 are measured: some four minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="which; default: S1 to S8")
    parser.add_argument("--real", action="store_true", help="with the real Codex: S1, S2 and S3")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each (5)")
    parser.add_argument(
        "--quick", action="store_true", help="very little of each: shows that it works, no more"
    )
    parser.add_argument("--json", metavar="FILE", help="write all samples as JSON")
    parser.add_argument("--svg", metavar="FILE", help="write a picture of the distributions")
    parser.add_argument(
        "--deltas", type=int, default=20_000, metavar="N", help="text deltas for `stages` (20000)"
    )
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    names: list[str] = options.scenarios or [*SCENARIOS]
    for name in names:
        if name not in (*SCENARIOS, STAGES):
            known = ", ".join((*SCENARIOS, STAGES))
            raise UsageError(f"there is no scenario {name}; there are {known}")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds} is not possible; it takes 1 or more")
    before = _busy()
    results, whole = _measured(options, names)
    early = [] if whole else ["it was ended early: this is what there was by then"]
    _tell(options, results, [*before, *_busy(), *early])
    return 0 if whole else ENDED_EARLY


def _measured(options: argparse.Namespace, names: list[str]) -> tuple[Any, bool]:
    """What was measured, and whether all of it was."""
    # The loads and the stages take a while to import, which no other command should pay.
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


def _tell(options: argparse.Namespace, results: Any, warnings: list[str]) -> None:
    report: Any = import_module("pipeline.bench.report")
    titles = {
        **SCENARIOS,
        STAGES: "the CPU of an event on its way from a line to bytes",
        "machine": "how fast this machine is just now; everything else is to be read against it",
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
    """What to be told when others use the machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores * 0.75:
        return []
    return [f"the machine is busy (load {load:.1f} on {cores} cores): trust ratios only"]


def _progress() -> Callable[[str], None]:
    """Tells a person who waits what is going on; nobody else wants to know."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda doing: print(f"\r\x1b[K{doing}", end="", file=sys.stderr, flush=True)
