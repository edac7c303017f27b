"""`smoke`: tries a running server, whoever runs it and wherever."""

from __future__ import annotations

import argparse
import os
import sys
from time import perf_counter
from typing import Any

import httpx
import trio

from pipeline.cli.smoke_checks import CHECKS, Check, Target, UndecidedError, WrongError
from pipeline.cli.terminal import Paint
from pipeline.errors import UsageError

HELP = "try a running server: calls, streams, aborts, errors; one line each"
DESCRIPTION = """\
Ask a running server for everything a client needs: text and calls, streamed and not, structured and
written as text, the round trip of a tool, a client that leaves, errors. One line each; the exit
code is 0 when all of it works. With a real model it costs some tokens.

  python -m pipeline smoke http://127.0.0.1:11435"""
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
    failed = outcomes.count(False)
    print(f"\n{len(outcomes) - failed} of {len(outcomes)} fine, with the model {target.model}")
    return 1 if failed else 0


async def _first_model(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer: Any = (await client.get(f"{url}/v1/models")).json()
        return str(answer["data"][0]["id"])
    except httpx.HTTPError as error:
        raise UsageError(f"{url} cannot be reached: {error}") from None
    except STRANGE:
        raise UsageError(f"{url} lists no models; name one with --model") from None


async def _try(name: str, check: Check, target: Target) -> bool:
    """Run a check and print its line; whether nothing was wrong."""
    paint = Paint(sys.stdout)
    began = perf_counter()
    good = True
    try:
        result = f"{paint('green', 'ok')}    {name}: {await check(target)}"
    except UndecidedError as reason:
        result = f"{paint('yellow', 'n/a')}   {name}: {reason}"
    except WrongError as problem:
        good, result = False, f"{paint('red', 'WRONG')} {name}: {problem}"
    except STRANGE as problem:
        good = False
        result = f"{paint('red', 'WRONG')} {name}: {type(problem).__name__}: {problem}"
    print(f"{result} {paint('dim', f'({perf_counter() - began:.2f} s)')}", flush=True)
    return good
