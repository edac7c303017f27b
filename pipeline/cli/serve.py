"""`serve`: the OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import trio

from pipeline.cli.flags import add_settings, settings_from
from pipeline.cli.terminal import Paint
from pipeline.errors import only_member
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pipeline.serve.running import Running

HELP = "serve the OpenAI API on your Codex login"
DESCRIPTION = """\
Serve an OpenAI-compatible API on loopback, with Codex behind it. Point any client at the address it
prints; the tools are the client's, and no key is needed on loopback.

  python -m pipeline serve             on your Codex login (codex login)
  python -m pipeline serve --demo      on a scripted model: no login, no network

Ctrl-C or SIGTERM stops it: answers that run may finish, a second one ends them at once."""


HELLO = '{"model":"%s","stream":true,"messages":[{"role":"user","content":"Hello!"}]}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--demo",
        action="store_true",
        help="run the real Codex on a built-in scripted model: no login, no network",
    )
    add_settings(parser, "server", "backend", "pipeline", "source")


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    # The HTTP server takes half a second to import, which no other command should pay.
    import_module("pipeline.serve.logs").configure(settings)
    trio.run(_serve, settings, options.demo)
    return 0


async def _serve(settings: Settings, demo: bool) -> None:
    running: Any = import_module("pipeline.serve.running")
    stop = trio.Event()
    serving = False

    async def watch(cancel_scope: trio.CancelScope) -> None:
        async for _ in signals:
            if stop.is_set() or not serving:
                cancel_scope.cancel()
            stop.set()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                async with running.serving(settings, demo=demo) as server:
                    serving = True
                    print(banner(server, settings, demo=demo), flush=True)
                    await stop.wait()
                    print("stopping; once more ends it at once", file=sys.stderr, flush=True)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


def banner(running: Running, settings: Settings, *, demo: bool) -> str:
    """What a person needs to know to use the server."""
    paint = Paint(sys.stdout)
    keys = running.server.keys
    who = f"{', '.join(keys.names)}" if len(keys) else "none needed on this address"
    facts = {
        "API": paint("bold", f"{running.url}/v1"),
        "backend": running.server.door.name,
        "calls": f"output mode {settings.output_mode}, cut after tools: "
        f"{settings.effective_cut_mode}",
        "keys": who,
    }
    lines = [paint("bold", "codex-sluice") + ": an OpenAI-compatible server for Codex", ""]
    lines += [f"  {name:8} {value}" for name, value in facts.items()]
    model = "gpt-5" if demo else "gpt-5-codex"
    key = ' -H "Authorization: Bearer $KEY"' if len(keys) else ""
    lines += [
        "",
        paint("dim", "Try:"),
        f"  curl -N {running.url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"    -d '{HELLO % model}'",
        "",
        paint("dim", "Ctrl-C stops it."),
    ]
    return "\n".join(lines)
