"""`serve`: the OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

import trio

from pipeline.assembly import Settings
from pipeline.cli.flags import add_settings, settings_from
from pipeline.cli.terminal import Paint
from pipeline.errors import only_member

HELP = "serve the OpenAI API on your Codex login"
DESCRIPTION = """\
Serve an OpenAI-compatible API on loopback, with Codex behind it. Point any client at the address it
prints; the tools are the client's, and no key is needed on loopback.

  python -m pipeline serve             on your Codex login (codex login)
  python -m pipeline serve --demo      on a scripted model: no login, no network
  python -m pipeline serve --workers 4      as four processes, for a machine with many cores

Ctrl-C or SIGTERM stops it: answers that run may finish, a second one ends them at once."""

MOST_FILES = 65_536
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
    allow_many_connections()
    # The HTTP server takes half a second to import, which no other command should pay.
    import_module("pipeline.serve.logs").configure(settings, shared=settings.workers > 1)
    trio.run(_serve, settings, options.demo)
    return 0


def allow_many_connections() -> None:
    """Use what the system grants: by default a process is content with a small part of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then it is as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings, demo: bool) -> None:
    several = settings.workers > 1
    running: Any = import_module(f"pipeline.{'workers.supervisor' if several else 'serve.running'}")
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
                    import_module("pipeline.serve.garbage").look_less_often()
                    print(banner(server, settings, demo=demo), flush=True)
                    await stop.wait()
                    print("stopping; once more ends it at once", file=sys.stderr, flush=True)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


class Told(Protocol):
    """What is told of a server, of one process or several."""

    @property
    def url(self) -> str: ...

    @property
    def backend(self) -> str: ...


def banner(running: Told, settings: Settings, *, demo: bool) -> str:
    """What a person needs to know to use the server."""
    paint = Paint(sys.stdout)
    keys: Any = import_module("pipeline.serve.auth").Keys.from_settings(settings)
    who = f"{', '.join(keys.names)}" if len(keys) else "none needed on this address"
    facts = {
        "API": paint("bold", f"{running.url}/v1"),
        "backend": running.backend,
        "calls": f"output mode {settings.output_mode}, cut after tools: "
        f"{settings.effective_cut_mode}",
        "keys": who,
    }
    if settings.workers > 1:
        facts["workers"] = f"{settings.workers} processes"
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
