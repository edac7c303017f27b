"""`fake-codex`: an app-server without login that can inject faults."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence

from pipeline.errors import UsageError
from sources.demo.chaos import FIELDS, METHODS, FakeCodex, Faults
from sources.demo.chaos_faults import FAULTS, fault_words
from sources.demo.script import SCENARIOS

HELP = "run a fake `codex app-server` without login that can inject faults"
DESCRIPTION = f"""\
Run a fake `codex app-server` on standard input and output. It needs no login and no network,
answers as Codex 0.166 does, and can inject faults. Use it in place of a Codex (`-c KEY=VALUE` and
`app-server` are accepted and ignored), or type requests:

  {{"id": 1, "method": "initialize", "params": {{}}}}
  {{"id": 2, "method": "thread/start", "params": {{}}}}

A word in the last user message chooses the answer, as with the scripted model:
  {", ".join(SCENARIOS)}, LONG, LOOK
The name of a tool makes it call the tool; any other text is repeated. A line such as
"CALL readNote {{"path":"a.md"}}" calls it with those arguments; "RECALL word" finds a word again.

Words with an exclamation mark choose the faults of the turn, as many as you like, such as
"TEXT !torn !late":

{chr(10).join(f"  !{name:<12} {fault.__doc__}" for name, fault in FAULTS.items())}
  !deltas=N     answers with N numbered words at full speed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    turns = parser.add_argument_group("faults of every turn")
    turns.add_argument(
        "--always", default="", metavar="WORDS", help='such as "torn late slow=0.1", without marks'
    )
    turns.add_argument("--deltas", type=int, metavar="N", help="answer with N words at full speed")
    faults = parser.add_argument_group(f"faults of a method; the methods are {', '.join(METHODS)}")
    for flag, form, says in (
        ("--hang", "METHOD", "never answer it"),
        ("--refuse", "METHOD", "answer it with an error"),
        ("--wrong-id", "METHOD", "send answers with wrong ids before the right one"),
        ("--die", "METHOD", "kill the process when it comes"),
        (
            "--lacks",
            "NAME",
            f"do not know a method or the field {', '.join(FIELDS)}, as an old Codex",
        ),
        ("--busy", "METHOD=N", "answer the first N requests with -32001, overloaded"),
        ("--delay", "METHOD=SECONDS", "answer it late"),
        ("--deaf", "METHOD=SECONDS", "stop reading for so long when it comes"),
    ):
        faults.add_argument(flag, action="append", default=[], metavar=form, help=says)
    parser.add_argument("--stubborn", action="store_true", help="exit only when killed")
    parser.add_argument(
        "--log", default="", metavar="FILE", help="append received messages to a file"
    )
    parser.add_argument("-c", action="append", metavar="KEY=VALUE", help="ignored")
    parser.add_argument("--bundled", action="store_true", help="ignored")
    parser.add_argument(
        "command", nargs="*", metavar="app-server", help="ignored; `debug models` lists none"
    )


def run(options: argparse.Namespace) -> int:
    if options.command == ["debug", "models"]:
        print('{"models": []}')
        return 0
    words = fault_words(" ".join(f"!{word}" for word in options.always.split()))
    _known("--always", words, FAULTS)
    try:
        codex = FakeCodex(
            Faults(
                hang=_methods("--hang", options.hang),
                refuse=_methods("--refuse", options.refuse),
                wrong_id=_methods("--wrong-id", options.wrong_id),
                die=_methods("--die", options.die),
                lacks=_methods("--lacks", options.lacks, FIELDS),
                busy=_numbers("--busy", options.busy),
                delay=_numbers("--delay", options.delay),
                deaf=_numbers("--deaf", options.deaf),
                always=words,
                deltas=options.deltas,
                stubborn=options.stubborn,
                log=options.log,
            )
        )
    except OSError as error:
        raise UsageError(f"--log {options.log}: cannot be written: {error.strerror}") from None
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    codex.run()
    return 0


def _methods(flag: str, given: Iterable[str], others: Iterable[str] = ()) -> frozenset[str]:
    return _known(flag, given, (*METHODS, *others))


def _known(flag: str, given: Iterable[str], choices: Iterable[str]) -> frozenset[str]:
    given, known = frozenset(given), list(choices)
    for name in sorted(given.difference(known)):
        raise UsageError(f"{flag} must be one of {', '.join(known)} (got {name})")
    return given


def _numbers(flag: str, given: Sequence[str]) -> dict[str, float]:
    pairs = [one.partition("=") for one in given]
    _methods(flag, (name for name, _, _ in pairs))
    try:
        return {name: float(number) for name, _, number in pairs}
    except ValueError:
        raise UsageError(f"{flag} must be METHOD=N (got {' '.join(given)})") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """This command alone, for tests and benchmarks: it starts five times as fast."""
    parser = argparse.ArgumentParser(prog="fake-codex")
    add_arguments(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
