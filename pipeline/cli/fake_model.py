"""`fake-model`: the scripted model behind the Responses API, for a Codex without a login."""

from __future__ import annotations

import argparse
import signal
import socket
from importlib import import_module
from typing import Any

import trio

from pipeline.errors import UsageError
from sources.demo.provider import scripted_provider
from sources.demo.script import SCENARIOS

HELP = "serve a scripted model on loopback, for a Codex without a login"
DESCRIPTION = f"""\
Serve a scripted model with the Responses API on loopback, and show the flags for a Codex to use
it. It needs no login and no network. Ctrl-C stops it.

A word in the last user message chooses the answer:
  {", ".join(SCENARIOS)}, LONG, LOOK
The name of a tool makes it call the tool; any other text is repeated. "RECALL word" finds a word
again. Lines such as these are a script, one response up to each THEN:
  SAY Let me look.                   WAIT 2       is silent for two seconds
  CALL readNote {{"path":"a.md"}}      TRICKLE 2    takes so long to write the next call
  THEN                               goes on once the tools have answered"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="the port; default: a free one"
    )


def run(options: argparse.Namespace) -> int:
    if not 0 <= options.port < 65_536:
        raise UsageError(f"--port must be 0 to 65535 (got {options.port})")
    _try_port(options.port)
    trio.run(_serve, options.port)
    return 0


def _try_port(port: int) -> None:
    """Check early whether a port is free: later the error would come from inside a nursery."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"--port {port} cannot be used: {error.strerror}") from None


async def _serve(port: int) -> None:
    # Imported late: the HTTP server takes half a second to import.
    model: Any = import_module("sources.demo.model").ScriptedModel()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with model.serving(port) as url:
            print(f"the model listens at {url}; flags for Codex:\n")
            for key, value in scripted_provider(url).items():
                print(f"  -c '{key}={value}'")
            print("\nCtrl-C stops it.", flush=True)
            async for _ in signals:
                break
    print(f"served {len(model.requests)} requests", flush=True)
