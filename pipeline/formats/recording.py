"""The header line of a recorded turn: where it comes from and which request it answers.

    {"recording": {"version": 1, "time": 1794793968.2, "request_id": "req_…", "backend": "codex…",
                   "response_ends": "told", "raw_items": true, "continued": false,
                   "response_open": false, "request": {…}}}

`time` is when the turn began, in seconds since 1970. `response_ends` is what the backend was then
known to report, `raw_items` whether calls come as raw items beside the requests to run them,
`continued` whether the turn was already running, and `response_open` whether the response before
it had not ended: replay needs these to decide as the live turn did. `request` is the requested
turn, in the fields of `pipeline.turn.Turn`.
Each following line is `{"at": seconds, "message": {…}}`. If a timeout ended the answer, the last
message is `{"method": "recording/cut"}`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs
import cattrs
from attrs import evolve, frozen

from pipeline.events import ResponseEnds
from pipeline.loose_json import Json, as_json, is_json
from pipeline.turn import NamedTool, ToolChoice, Turn

VERSION: Final = 1
HEADER: Final = "recording"
CUT: Final = "recording/cut"
"""The method of the last message when the answer was cut off before its backend was done."""


@frozen
class Header:
    """What is known of a recorded turn besides its messages."""

    version: int = VERSION
    time: float = 0.0
    request_id: str = ""
    backend: str = ""
    response_ends: ResponseEnds = "unknown"
    raw_items: bool = False
    continued: bool = False
    response_open: bool = False
    turn: Turn | None = None

    def to_json(self) -> Json:
        fields = attrs.asdict(self, filter=lambda field, _: field.name != "turn")
        turn = None if self.turn is None else evolve(self.turn, owner="")
        return {**fields, "request": None if turn is None else _converter.unstructure(turn)}

    @classmethod
    def from_json(cls, line: Json) -> Header:
        """Read a header; ValueError says what is wrong with it."""
        fields = as_json(line.get(HEADER))
        version = fields.get("version")
        if version != VERSION:
            raise ValueError(
                f"its header has version {version!r:.40}, and this program reads {VERSION}"
            )
        try:
            return _converter.structure({**fields, "turn": fields.get("request")}, cls)
        except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"its header cannot be read: {_why(error)}") from None


def is_header(message: object) -> bool:
    return is_json(message) and is_json(message.get(HEADER))


def _why(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))[:300]
    return str(error)[:300]


def _tool_choice(value: Any, _: object) -> ToolChoice:
    if is_json(value):
        return NamedTool(str(value.get("name")))
    for choice in ("auto", "none", "required"):
        if value == choice:
            return choice
    raise ValueError(f"tool_choice {value!r:.40} is not auto, none, required or a name")


def _literal(value: Any, kind: Any) -> Any:
    if value not in kind.__args__:
        raise ValueError(f"{value!r:.40} is not one of {', '.join(map(repr, kind.__args__))}")
    return value


def _text(value: Any, _: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


_converter: Final = cattrs.Converter()
_converter.register_structure_hook(str, _text)
_converter.register_structure_hook_func(lambda kind: kind == ToolChoice, _tool_choice)
_converter.register_structure_hook_func(
    lambda kind: getattr(kind, "__origin__", None) is Literal, _literal
)
