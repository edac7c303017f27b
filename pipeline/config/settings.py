"""All settings in one frozen object, read from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import attrs
import cattrs
from attrs import frozen

from pipeline.options import Escaped, invalid_value, numbers
from pipeline.requests.shared.options import RequestOptions
from pipeline.serve.access.admission import LimitOptions
from pipeline.serve.access.auth import AccessOptions
from pipeline.serve.memory.sqlite import StoreOptions
from pipeline.serve.observe.logs import LogOptions
from pipeline.serve.options import EndpointOptions, HttpOptions, ListenOptions
from pipeline.turn import OutputMode, Turn
from sinks.options import AnswerOptions
from sources.app_server.process.options import CodexOptions
from sources.app_server.process.patience import RecycleOptions
from sources.app_server.turn.kept import HoldOptions
from sources.app_server.turn.place import TimeoutOptions
from sources.app_server.turn.record import RecordOptions
from sources.dump import DumpOptions
from sources.responses_request import ResponsesApiOptions
from stages.aggregate_tool_calls import AggregateOptions
from stages.cap_tool_calls import CapOptions
from stages.cut_after_tools import CutOptions
from stages.dedup_tool_calls import DedupOptions

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


@frozen(slots=False)
class Settings(  # attrs lists the fields of the last class first
    LogOptions,
    EndpointOptions,
    StoreOptions,
    HttpOptions,
    LimitOptions,
    RequestOptions,
    AccessOptions,
    ListenOptions,
    RecordOptions,
    RecycleOptions,
    HoldOptions,
    TimeoutOptions,
    CodexOptions,
    ResponsesApiOptions,
    DumpOptions,
    AnswerOptions,
    AggregateOptions,
    CapOptions,
    DedupOptions,
    CutOptions,
):
    """All settings: the options of all parts, each declared in its part."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Read the environment; keyword arguments that are not None take precedence."""
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for attribute in attrs.fields(cls):
            given = overrides.pop(attribute.name, None)
            if given is None:  # an empty variable counts as unset, an empty argument does not
                given = environ.get(attribute.metadata["env"]) or None
            if given is not None:
                values[attribute.name] = _structure(attribute, given)
        if overrides:
            raise TypeError(f"no such setting: {', '.join(sorted(overrides))}")
        return cls(**values)  # type: ignore[arg-type]  # each value was structured just above

    def output_mode_for(self, turn: Turn) -> OutputMode:
        """The output mode of one request: its own, else the operator's."""
        mode = turn.output_mode or self.output_mode
        if mode == "auto" and turn.offered:
            return "openai-json"
        return mode

    def on_responses(self, turn: Turn) -> Turn:
        """A turn of the Responses API, with the output mode that applies there."""
        mode = turn.output_mode or self.responses_output_mode or None
        return attrs.evolve(turn, output_mode=mode)


# -- one value -----------------------------------------------------------------------------------


def choices(attribute: attrs.Attribute[Any]) -> str:
    """What a setting accepts, in words."""
    kind = _resolved(attribute)
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return numbers(attribute)
    if get_origin(kind) is Literal:
        return ", ".join(word or "nothing" for word in get_args(kind))
    return "any text"


def _resolved(attribute: attrs.Attribute[Any]) -> Any:
    return attrs.fields_dict(attrs.resolve_types(Settings))[attribute.name].type


def _structure(attribute: attrs.Attribute[Any], value: object) -> object:
    kind = _resolved(attribute)
    try:
        return _converter.structure(value, kind)
    except (ValueError, TypeError) as error:
        wanted = f"one of {choices(attribute)}" if _is_choice(kind) else choices(attribute)
        raise invalid_value(attribute, wanted, value) from error


def _to_bool(value: object, _: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError(value) from None


def _is_escaped(kind: object) -> bool:
    return kind is Escaped


def _to_escaped(value: object, _: object) -> str:
    return re.sub(r"\\([ntr\\])", lambda found: _ESCAPES[found[1]], str(value))


def _is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _to_choice(value: object, kind: Any) -> object:
    wanted = str(value).strip().lower()
    if wanted not in get_args(kind):
        raise ValueError(value)
    return wanted


_converter: Final = cattrs.Converter()
_converter.register_structure_hook(bool, _to_bool)
_converter.register_structure_hook_func(_is_escaped, _to_escaped)
_converter.register_structure_hook_func(_is_choice, _to_choice)
