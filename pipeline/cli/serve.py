"""`serve`: the OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
from importlib import import_module

from pipeline.cli.flags import add_settings, settings_from

HELP = "serve the OpenAI API on your Codex login"
DESCRIPTION = """\
Serve an OpenAI-compatible API on loopback, with Codex as its backend. Point any client at the URL
that it prints; tools are run by the client, and no key is needed on loopback.

  python -m pipeline serve             on your Codex login (codex login)
  python -m pipeline serve --demo      on a scripted model: no login, no network
  python -m pipeline serve --workers 4   as four processes, for a machine with many cores

Ctrl-C or SIGTERM stops gracefully, letting running answers finish; a second one stops at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--demo",
        action="store_true",
        help="run the real Codex on a built-in scripted model: no login, no network",
    )
    add_settings(parser, "server", "backend", "pipeline", "source")


def run(options: argparse.Namespace) -> int:
    # Imported here: the HTTP server takes half a second to import, and other commands none of it.
    import_module("pipeline.assembly.serving").serve(
        None, settings_from(options), demo=options.demo
    )
    return 0
