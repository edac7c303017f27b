"""`smoke`: tests a running server, wherever it is deployed."""

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
from pipeline.errors import UsageError
from pipeline.terminal import Paint

HELP = "test a running server: calls, streams, aborts, errors; one line each"
DESCRIPTION = """\
Test a running server for everything that a client needs, with Chat Completions and Responses,
streamed and not: text, calls, several calls in one turn and some seconds apart, calls written as
text, the round trip of a tool, a client that disconnects, errors. One line each: ok, WRONG, or n/a
if the model did not do what the check needs. The exit code is 1 if something is WRONG, else 0.
With a real model it costs some tokens.

  python -m pipeline smoke http://127.0.0.1:11435"""
Outcome: TypeAlias = Literal["ok", "n/a", "WRONG"]
COLOURS: Final[dict[Outcome, str]] = {"ok": "green", "n/a": "yellow", "WRONG": "red"}
INVALID = (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError)
"""The exceptions that an invalid answer causes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the URL of the server, with or without /v1")
    parser.add_argument(
        "--key", metavar="KEY", help="the API key to send [OPENAI_API_KEY]", default=None
    )
    parser.add_argument("--model", metavar="NAME", help="the model; default: the first one listed")
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="N", help="timeout of one check"
    )


def run(options: argparse.Namespace) -> int:
    url: str = options.url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"URL must look like http://127.0.0.1:11435 (got {options.url})")
    key = options.key or os.environ.get("OPENAI_API_KEY", "")
    return trio.run(_run, url, key, options.model, options.seconds)


async def _run(url: str, key: str, model: str | None, seconds: float) -> int:
    headers = {"content-type": "application/json"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=seconds, trust_env=False) as client:
        target = Target(client, url, model or await _first_model(client, url))
        outcomes = [await _try(name, check, target) for name, check in CHECKS.items()]
    fine, wrong, undecided = (outcomes.count(one) for one in ("ok", "WRONG", "n/a"))
    summary = f"{fine} of {len(outcomes)} ok, {wrong} wrong, {undecided} n/a"
    print(f"\n{summary}, with the model {target.model}")
    return 1 if wrong else 0


async def _first_model(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer: Any = (await client.get(f"{url}/v1/models")).json()
        return str(answer["data"][0]["id"])
    except httpx.HTTPError as error:
        raise UsageError(f"{url} cannot be reached: {error}") from None
    except INVALID:
        raise UsageError(f"{url} lists no models; name one with --model") from None


async def _try(name: str, check: Check, target: Target) -> Outcome:
    """Run a check and print its line."""
    paint = Paint(sys.stdout)
    began = perf_counter()
    outcome: Outcome = "WRONG"
    try:
        message = await check(target)
        outcome = "ok"
    except UndecidedError as reason:
        message, outcome = str(reason), "n/a"
    except WrongError as problem:
        message = str(problem)
    except INVALID as problem:
        message = f"{type(problem).__name__}: {problem}"
    mark = paint(COLOURS[outcome], outcome) + " " * (5 - len(outcome))
    took = paint("dim", f"({perf_counter() - began:.2f} s)")
    print(f"{mark} {name}: {message} {took}", flush=True)
    return outcome
