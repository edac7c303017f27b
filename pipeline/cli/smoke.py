"""`smoke`: tries a running server, whoever runs it and wherever."""

from __future__ import annotations

import argparse
import os
import sys
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias

import httpx
import trio

from pipeline.cli.smoke_checks import CHECKS, Check
from pipeline.cli.smoke_target import Target, UndecidedError, WrongError
from pipeline.cli.terminal import Paint
from pipeline.errors import UsageError

HELP = "try a running server: calls, streams, aborts, errors; one line each"
DESCRIPTION = """\
Ask a running server for everything a client needs, over Chat Completions and Responses, streamed
and not: text, calls, several calls in one turn and some seconds apart, calls written as text, the
round trip of a tool, a client that leaves, errors. One line each: ok, WRONG, or n/a where the model
did not do what the check needs. The exit code is 1 when something is WRONG, else 0. With a real
model it costs some tokens.

  python -m pipeline smoke http://127.0.0.1:11435"""
Outcome: TypeAlias = Literal["ok", "n/a", "WRONG"]
COLOURS: Final[dict[Outcome, str]] = {"ok": "green", "n/a": "yellow", "WRONG": "red"}
STRANGE = (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError)
"""What an answer that is no answer of ours leads to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="where the server is, with or without /v1")
    parser.add_argument(
        "--key", metavar="KEY", help="the API key to send [OPENAI_API_KEY]", default=None
    )
    parser.add_argument("--model", metavar="NAME", help="the model; default: the first one listed")
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="N", help="how long one check may take"
    )


def run(options: argparse.Namespace) -> int:
    url: str = options.url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{options.url} is no address; it should look like http://127.0.0.1:11435")
    key = options.key or os.environ.get("OPENAI_API_KEY", "")
    return trio.run(_run, url, key, options.model, options.seconds)


async def _run(url: str, key: str, model: str | None, seconds: float) -> int:
    headers = {"content-type": "application/json"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=seconds, trust_env=False) as client:
        target = Target(client, url, model or await _first_model(client, url))
        outcomes = [await _try(name, check, target) for name, check in CHECKS.items()]
    fine, wrong, undecided = (outcomes.count(one) for one in ("ok", "WRONG", "n/a"))
    told = f"{fine} of {len(outcomes)} fine, {wrong} wrong, {undecided} n/a"
    print(f"\n{told}, with the model {target.model}")
    return 1 if wrong else 0


async def _first_model(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer: Any = (await client.get(f"{url}/v1/models")).json()
        return str(answer["data"][0]["id"])
    except httpx.HTTPError as error:
        raise UsageError(f"{url} cannot be reached: {error}") from None
    except STRANGE:
        raise UsageError(f"{url} lists no models; name one with --model") from None


async def _try(name: str, check: Check, target: Target) -> Outcome:
    """Run a check and print its line."""
    paint = Paint(sys.stdout)
    began = perf_counter()
    outcome: Outcome = "WRONG"
    try:
        told = await check(target)
        outcome = "ok"
    except UndecidedError as reason:
        told, outcome = str(reason), "n/a"
    except WrongError as problem:
        told = str(problem)
    except STRANGE as problem:
        told = f"{type(problem).__name__}: {problem}"
    mark = paint(COLOURS[outcome], outcome) + " " * (5 - len(outcome))
    took = paint("dim", f"({perf_counter() - began:.2f} s)")
    print(f"{mark} {name}: {told} {took}", flush=True)
    return outcome
