"""The server as a program: banner, log, signals."""

from __future__ import annotations

import resource
import signal
import sys
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol

import trio

from pipeline.config import Settings
from pipeline.errors import UsageError, only_member
from pipeline.recipe import Pipeline
from pipeline.serve import running
from pipeline.serve.access.auth import Keys
from pipeline.serve.observe import logs
from pipeline.serve.running import collect_garbage_less_often
from pipeline.terminal import Paint
from pipeline.workers import supervisor

MOST_FILES: Final = 65_536
HELLO: Final = '{"model":"%s","stream":true,"messages":[{"role":"user","content":"Hello!"}]}'


def serve(
    recipe: Pipeline | None = None, settings: Settings | None = None, *, demo: bool = False
) -> None:
    """Serve until Ctrl-C or SIGTERM, with the given stages or the settings' own."""
    settings = Settings.from_env() if settings is None else settings
    if recipe is not None and settings.workers > 1:
        raise UsageError(
            "a pipeline that is given in code cannot be passed on to worker processes; serve it "
            "with PROXY_WORKERS=1"
        )
    raise_file_limit()
    logs.configure(settings, shared=settings.workers > 1)
    trio.run(_serve, settings, recipe, demo)


def raise_file_limit() -> None:
    """Raise the limit of open files to what the system grants, for many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings, recipe: Pipeline | None, demo: bool) -> None:
    opening: AbstractAsyncContextManager[ServerInfo]
    if settings.workers > 1:
        opening = supervisor.serving(settings, demo=demo)
    else:
        opening = running.serving(settings, recipe, demo=demo)
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
                async with opening as server:
                    serving = True
                    collect_garbage_less_often()
                    print(banner(server, settings, demo=demo), flush=True)
                    await stop.wait()
                    print(
                        "stopping gracefully; press Ctrl-C again to stop immediately",
                        file=sys.stderr,
                        flush=True,
                    )
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_member(group) from None


class ServerInfo(Protocol):
    """What the banner shows of a server, with one process or several."""

    @property
    def url(self) -> str: ...

    @property
    def backend(self) -> str: ...


def banner(running: ServerInfo, settings: Settings, *, demo: bool) -> str:
    """How to use the server, for people."""
    paint = Paint(sys.stdout)
    keys = Keys.from_settings(settings)
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
