"""`replay`: a recorded turn as a client would get it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, TypeAlias

import msgspec
import trio
from attrs import evolve

from pipeline.cli.flags import (
    RecordedRequest,
    add_api,
    add_request,
    add_settings,
    open_dump,
    request_from_flags,
    settings_from,
)
from pipeline.config import Settings, chat_options, recipe, responses_options
from pipeline.errors import Failure, ProxyError, UsageError
from pipeline.formats.recording import Header
from pipeline.ledger import Ledger
from pipeline.stage import Sink
from pipeline.terminal import PrettyStream
from pipeline.turn import Turn
from sinks.chat import ChatCompletion, ChatJson, ChatSse
from sinks.responses import (
    ResponsesBody,
    ResponsesJson,
    ResponsesOptions,
    ResponsesSse,
    numbered_ids,
)
from sources.replay import Replay

ReplaySink: TypeAlias = Sink[Failure | ChatCompletion | ResponsesBody | None]

HELP = "show a recorded turn as a client would get it"
DESCRIPTION = """\
Show a recorded turn as a client would get it: the very bytes when the output is piped, a readable
form on a terminal. A transcript holds what `codex app-server` wrote, one JSON message a line, or a
stream of Responses events."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="transcripts; - is standard input")
    add_api(parser)
    parser.add_argument(
        "--no-stream", action="store_true", help="the JSON body instead of the stream"
    )
    parser.add_argument(
        "--include-usage", action="store_true", help="end a chat stream with the token counts"
    )
    parser.add_argument(
        "--speed",
        default="max",
        metavar="N|max",
        help="times the recorded speed: 1 takes as long as the turn did; default: max",
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="MS",
        help="at least so many milliseconds between two pieces, to watch a turn that was too fast",
    )
    add_request(parser)
    add_settings(parser, "pipeline", "source")


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    asked = request_from_flags(options, settings)
    speed, pace = _speed(options.speed), _milliseconds(options.pace)
    statuses = [0]
    with open_dump(settings) as dump:
        for path in options.files:
            if len(options.files) > 1 and sys.stdout.isatty():
                print(f"== {path}")
            source = Replay(path, speed=speed, pace=pace, watch=dump)
            statuses.append(_status(options, source, settings, asked))
    return max(statuses)


def _status(
    options: argparse.Namespace, source: Replay, settings: Settings, asked: RecordedRequest
) -> int:
    """Play one turn; the exit status it deserves."""
    try:
        asked = asked.or_recorded(source.header)
        if options.include_usage:
            asked = evolve(asked, turn=evolve(asked.turn, include_usage=True))
        stream = not options.no_stream and asked.turn.stream is not False
        sink = _sink(options.api, settings, asked, source.header, stream=stream)
        return 0 if trio.run(_replay, source, settings, asked.turn, sink) else 1
    except ProxyError as error:
        _show_error(error)
        return 1
    except UsageError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2


def _sink(
    api: str, settings: Settings, asked: RecordedRequest, header: Header, *, stream: bool
) -> ReplaySink:
    if api == "chat":
        options = chat_options(
            settings,
            asked.turn,
            response_id=_response_id("chatcmpl-", asked.turn),
            created=int(header.time),
        )
        return ChatSse(options) if stream else ChatJson(options)
    responses = replayed_responses(settings, asked, header)
    return ResponsesSse(responses) if stream else ResponsesJson(responses)


def _response_id(prefix: str, turn: Turn) -> str:
    """The id that the answer had, where it was recorded; else the same one every time."""
    own = turn.seed.partition("#")[0]
    return own if own.startswith(prefix) else f"{prefix}{turn.request_id or 1}"


def replayed_responses(
    settings: Settings, asked: RecordedRequest, header: Header
) -> ResponsesOptions:
    """How a recorded turn is written on the Responses API: the same every time."""
    fixed = responses_options(
        settings,
        asked.turn,
        asked.echo,
        response_id=_response_id("resp_", asked.turn),
        created=int(header.time),
        include_encrypted=True,
        new_id=numbered_ids(),
    )
    return evolve(fixed, now=lambda: int(header.time))


async def _replay(source: Replay, settings: Settings, turn: Turn, sink: ReplaySink) -> bool:
    """Play one turn to standard output; whether it ended well."""
    ledger = Ledger()
    try:
        answer = await recipe(settings).run(source, sink, turn, ledger=ledger, write=_writer())
        if isinstance(answer, ChatCompletion | ResponsesBody):
            _write_json(answer.body)
            return True
        return answer is None
    finally:
        if source.decoder.recognized:  # of a file that is no transcript there is nothing to remark
            for books in ledger:
                for remark in books.notes:
                    print(f"{books.name}: {remark}", file=sys.stderr)


def _writer() -> Callable[[bytes], Awaitable[None]]:
    pretty = PrettyStream() if sys.stdout.isatty() else None

    async def write(data: bytes) -> None:
        if pretty is not None:
            pretty.write(data)
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    return write


def _write_json(body: dict[str, Any]) -> None:
    data = msgspec.json.encode(body)
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    sys.stdout.buffer.write(data + b"\n")


def _show_error(error: ProxyError) -> None:
    """What a client gets when a turn fails before its first byte: a status and a JSON body."""
    failure = error.failure
    print(f"HTTP {failure.status}", file=sys.stderr)
    if failure.retry_after is not None:
        print(f"retry-after: {failure.retry_after:g}", file=sys.stderr)
    _write_json(failure.body())


def _speed(value: str) -> float | None:
    if value == "max":
        return None
    try:
        speed = float(value)
    except ValueError:
        speed = 0.0
    if not 0 < speed < inf:
        raise UsageError(f"--speed {value} is not possible; it takes max, or a number over 0")
    return speed


def _milliseconds(value: float) -> float:
    if not 0 <= value < inf:
        raise UsageError(f"--pace {value} is not possible; it takes milliseconds, 0 or more")
    return value / 1000
