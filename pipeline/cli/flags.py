"""Flags that several commands share: settings, and the request of a recorded turn."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from pipeline.config import Settings, choices
from pipeline.errors import ProxyError, UsageError
from pipeline.formats.recording import Header
from pipeline.formats.transcripts import parse_line
from pipeline.loose_json import Json, is_json
from pipeline.options import Group
from pipeline.requests.chat import ChatRequest
from pipeline.requests.responses import ResponsesRequest
from pipeline.turn import Tool, Turn
from sources.dump import EventDump


def setting_fields(*groups: Group) -> Iterator[attrs.Attribute[Any]]:
    """The settings of some groups, or all of them."""
    for attribute in attrs.fields(Settings):
        if not groups or attribute.metadata["group"] in groups:
            yield attribute


def flag_of(attribute: attrs.Attribute[Any]) -> str:
    return "--" + attribute.name.replace("_", "-")


def add_settings(parser: argparse.ArgumentParser, *groups: Group) -> None:
    group = parser.add_argument_group("settings (each is also an environment variable)")
    for attribute in setting_fields(*(groups or ("pipeline",))):
        meta = attribute.metadata
        default = "" if attribute.default == "" else f"; default: {shown(attribute.default)}"
        group.add_argument(
            flag_of(attribute),
            dest=attribute.name,
            metavar="VALUE",
            help=f"{meta['help']} ({choices(attribute)}{default}) [{meta['env']}]".replace(
                "%", "%%"
            ),
        )


def shown(value: object) -> str:
    """A setting's value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)[1:-1] if isinstance(value, str) else str(value)


def settings_from(options: argparse.Namespace) -> Settings:
    given = {field.name: getattr(options, field.name, None) for field in setting_fields()}
    return Settings.from_env(**given)


@contextmanager
def open_dump(settings: Settings) -> Generator[EventDump | None, None, None]:
    """The dump of the backend's messages, if the settings name one."""
    try:
        dump = EventDump.from_setting(settings.dump_events)
    except OSError as error:
        raise UsageError(f"{settings.dump_events}: cannot be written: {error.strerror}") from None
    try:
        yield dump
    finally:
        if dump is not None:
            dump.close()


def add_request(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the request of the turn")
    group.add_argument("--tools", metavar="A,B", help="the names of the tools the client declared")
    group.add_argument(
        "--request",
        metavar="FILE",
        help="the client's whole request as JSON: its model, tools and stream options are used",
    )


def add_api(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api", choices=["chat", "responses"], default="chat", help="the client's API"
    )


@attrs.frozen
class RecordedRequest:
    """The request of a recorded turn, and its fields that a response repeats."""

    turn: Turn
    echo: Json
    given: bool = False
    """Whether the flags describe it."""

    def or_recorded(self, header: Header) -> RecordedRequest:
        """The request in a recording's header, unless the flags describe another."""
        if header.turn is not None and not self.given:
            mode = header.turn.output_mode or self.turn.output_mode
            return attrs.evolve(self, turn=attrs.evolve(header.turn, output_mode=mode))
        seed = header.request_id if header.turn is None else header.turn.seed
        named = attrs.evolve(self.turn, seed=seed, request_id=header.request_id)
        return attrs.evolve(self, turn=named)


def request_from_flags(options: argparse.Namespace, settings: Settings) -> RecordedRequest:
    """The request of the flags: a file, names of tools, or both."""
    asked = RecordedRequest(Turn(), {})
    if options.request:
        read = _read_responses if options.api == "responses" else _read_chat
        try:
            asked = read(_read_json(options.request))
        except ProxyError as error:
            raise UsageError(f"{options.request}: {error}") from None
    names = [name.strip() for name in (options.tools or "").split(",") if name.strip()]
    turn = attrs.evolve(asked.turn, tools=(*asked.turn.tools, *map(Tool, names)))
    if options.api == "responses":
        turn = settings.on_responses(turn)
    return RecordedRequest(turn, asked.echo, given=bool(options.request or names))


def _read_chat(body: object) -> RecordedRequest:
    return RecordedRequest(ChatRequest.from_json(body, partial=True).turn(), {})


def _read_responses(body: object) -> RecordedRequest:
    if is_json(body):  # the input does not matter for the answer
        body = {"input": "…", **body}
    request = ResponsesRequest.from_json(body, partial=True)
    return RecordedRequest(request.turn(), request.echo())


def _read_json(path: str) -> object:
    try:
        body: object = parse_line(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from None
    return body
