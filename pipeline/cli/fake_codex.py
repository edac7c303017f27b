"""`fake-codex`: an app-server that needs no login and can be told to misbehave."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence

from pipeline.errors import UsageError
from sources.demo.chaos import FIELDS, METHODS, FakeCodex, Mischief
from sources.demo.chaos_faults import FAULTS, fault_words
from sources.demo.script import SCENARIOS

HELP = "be a `codex app-server` that needs no login and can be told to misbehave"
DESCRIPTION = f"""\
Be a `codex app-server` on standard input and output that needs no login and no network, answers as
Codex 0.166 does, and can be told to misbehave. Put it where a Codex is wanted (`-c KEY=VALUE` and
`app-server` are taken and ignored), or type at it:

  {{"id": 1, "method": "initialize", "params": {{}}}}
  {{"id": 2, "method": "thread/start", "params": {{}}}}

What a turn says is chosen by a word in what the user said last, as with the scripted model:
  {", ".join(SCENARIOS)}, LONG, LOOK
The name of a tool makes it call the tool; everything else is repeated. So does a line such as
"CALL readNote {{"path":"a.md"}}", with those arguments, and "RECALL word" finds a word again.

What goes wrong in it is chosen by words with an exclamation mark, as many as you like, such as
"TEXT !torn !late":

{chr(10).join(f"  !{name:<12} {fault.__doc__}" for name, fault in FAULTS.items())}
  !deltas=N     says N numbered words instead, as fast as it can"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    turns = parser.add_argument_group("faults of every turn")
    turns.add_argument(
        "--always", default="", metavar="WORDS", help='such as "torn late slow=0.1", without marks'
    )
    turns.add_argument("--deltas", type=int, metavar="N", help="say N words, as fast as possible")
    faults = parser.add_argument_group(f"faults of a method; there are {', '.join(METHODS)}")
    for flag, form, says in (
        ("--hang", "METHOD", "never answer it"),
        ("--refuse", "METHOD", "answer it with an error"),
        ("--wrong-id", "METHOD", "give answers that nobody waits for, then the right one"),
        ("--die", "METHOD", "be killed when it comes"),
        ("--lacks", "NAME", f"not know it, as an old Codex; or the field {', '.join(FIELDS)}"),
        ("--busy", "METHOD=N", "answer the first N with -32001, overloaded"),
        ("--delay", "METHOD=SECONDS", "answer it late"),
        ("--deaf", "METHOD=SECONDS", "read nothing more for so long when it came"),
    ):
        faults.add_argument(flag, action="append", default=[], metavar=form, help=says)
    parser.add_argument("--stubborn", action="store_true", help="leave only when killed")
    parser.add_argument("--log", default="", metavar="FILE", help="append what was received")
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
            Mischief(
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


def _known(flag: str, given: Iterable[str], there_are: Iterable[str]) -> frozenset[str]:
    given, known = frozenset(given), list(there_are)
    for name in sorted(given.difference(known)):
        raise UsageError(f"{flag} {name} is not possible; there are {', '.join(known)}")
    return given


def _numbers(flag: str, given: Sequence[str]) -> dict[str, float]:
    pairs = [one.partition("=") for one in given]
    _methods(flag, (name for name, _, _ in pairs))
    try:
        return {name: float(number) for name, _, number in pairs}
    except ValueError:
        raise UsageError(f"{flag} {' '.join(given)} is not possible; it takes METHOD=N") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command without the others, for tests and benchmarks: it starts five times as fast."""
    parser = argparse.ArgumentParser(prog="fake-codex")
    add_arguments(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
