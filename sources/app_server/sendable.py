"""Checks what a request holds before Codex does: what Codex cannot read it never answers."""

from __future__ import annotations

from typing import Final

import attrs

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import is_json, is_list
from pipeline.turn import Turn

DEEPEST: Final = 100
"""Codex reads 127 levels of JSON; some of them are the request's own."""


def check_sendable(turn: Turn) -> None:
    """Raise ProxyError where a Turn holds half of a surrogate pair, or JSON that is too deep."""
    todo: list[tuple[object, int]] = [
        (value, 0) for value in attrs.asdict(turn, recurse=False).values()
    ]
    todo += [(attrs.asdict(tool, recurse=False), 0) for tool in turn.tools]
    while todo:
        value, depth = todo.pop()
        if depth > DEEPEST:
            raise _refusal(f"is nested more than {DEEPEST} levels deep; send something flatter")
        if isinstance(value, str):
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise _refusal(
                    "holds half of a surrogate pair (such as \\ud800), which is no text; send "
                    "valid Unicode"
                )
        elif is_json(value):
            todo += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif is_list(value) or isinstance(value, tuple):
            todo += [(inner, depth + 1) for inner in value]


def _refusal(problem: str) -> ProxyError:
    return ProxyError(
        Failure(
            f"the request {problem}",
            status=400,
            type="invalid_request_error",
            code="invalid_request_error",
        )
    )
