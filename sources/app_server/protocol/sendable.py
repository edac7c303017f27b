"""Checks what a request holds before Codex does: what Codex cannot read it never answers."""

from __future__ import annotations

from typing import Final

import attrs

from pipeline.errors import rejection
from pipeline.loose_json import is_json, is_list
from pipeline.turn import OutputSchema, Tool, Turn

DEEPEST: Final = 100
"""Codex reads 127 levels of JSON; some of them are the request's own."""
_OF_A_TURN: Final = [
    field.name
    for field in attrs.fields(Turn)
    if field.name not in {"tools", "items", "output_schema"}
]
_OF_A_TOOL: Final = [field.name for field in attrs.fields(Tool)]
_OF_A_FORM: Final = [field.name for field in attrs.fields(OutputSchema)]


def check_sendable(turn: Turn) -> None:
    """Raise ProxyError where a Turn holds half of a surrogate pair, or JSON that is too deep."""
    plain = [getattr(turn, name) for name in _OF_A_TURN]
    tools = [[getattr(tool, name) for name in _OF_A_TOOL] for tool in turn.tools]
    form = [getattr(turn.output_schema, name, None) for name in _OF_A_FORM]
    todo: list[tuple[object, int]] = [(plain, 0), (tools, 0), (form, 0), ([*turn.items], 0)]
    while todo:
        value, depth = todo.pop()
        if depth > DEEPEST:
            raise rejection(
                f"the request is nested more than {DEEPEST} levels deep; send something flatter"
            )
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise rejection(
                    "the request holds half of a surrogate pair (such as \\ud800), which is no "
                    "text; send valid Unicode"
                ) from None
        elif is_json(value):
            todo += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif is_list(value):
            todo += [(inner, depth + 1) for inner in value]
