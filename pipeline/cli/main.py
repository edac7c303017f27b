"""Parses the command line and runs a command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from pipeline.cli import (
    bench,
    explain,
    fake_codex,
    fake_model,
    replay,
    serve,
    settings,
    smoke,
    stages,
)
from pipeline.cli.logs import warnings_to_stderr
from pipeline.errors import UsageError

COMMANDS = (serve, smoke, settings, replay, explain, stages, bench, fake_codex, fake_model)

DESCRIPTION = """\
An OpenAI-compatible server for Codex. The backend's messages pass through a pipeline of named
stages and become the client's response."""

EPILOG = """\
Try:
  FILE=examples/transcripts/codex-0.166.0/use-tool-text.jsonl
  python -m pipeline replay --tools localSearch $FILE
  python -m pipeline explain --tools localSearch $FILE
  python -m pipeline stages

Every flag of a stage is also an environment variable; the flag takes precedence."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m pipeline",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the status is 0, or 1 for a failed turn, or 2 for a wrong usage."""
    options = parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # show ? for what the terminal cannot encode
            stream.reconfigure(errors="replace")
    warnings_to_stderr()
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output closed it, as `| head` does; Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status
