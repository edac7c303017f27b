"""What a conversation means, whatever words a client repeats it in: for finding its thread again.

Clients write a history back in their own way: arguments as other JSON of the same value, text in
parts where it was a string, empty content, no reasoning, other ids. Those are the same history;
anything that the model would read as something else is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, cast

import attrs
import msgspec
from attrs import evolve

from pipeline.formats.custom_tools import to_text
from pipeline.loose_json import Json, as_json, as_list, is_json, is_list, text_of
from pipeline.turn import Turn

_encode: Final = msgspec.json.Encoder(order="sorted").encode
EXACT_INTEGERS: Final = 2**53
DEEPEST: Final = 200


class Call(NamedTuple):
    """A call that was made: its arguments are the model's own words."""

    call_id: str
    name: str
    arguments: str


def digest(turn: Turn, items: Sequence[Json]) -> bytes:
    """A digest of who asks for what, the form of the answer aside, in which conversation."""
    (found,) = digests(turn, items, [()])
    return found


def digests(
    turn: Turn, items: Sequence[Json], endings: Iterable[Sequence[Json]]
) -> frozenset[bytes]:
    """The digests of a conversation with each of several endings; its beginning is read once."""
    own = len(items)  # what the model said last is one step with what it says next
    while own and _is_models(items[own - 1]):
        own -= 1
    begun = _hashed(turn, items[:own])
    found: set[bytes] = set()
    for ending in endings:
        hashed = begun.copy()
        _read(hashed, turn, (*items[own:], *ending))
        found.add(hashed.digest())
    return frozenset(found)


def _is_models(item: Json) -> bool:
    kind = item.get("type", "message")
    return kind in ("function_call", "reasoning") or (
        kind == "message" and item.get("role") == "assistant"
    )


def _hashed(turn: Turn, items: Iterable[Json]) -> blake2b:
    hashed = blake2b(digest_size=16)
    shape = evolve(turn, items=(), request_id="", seed="", prompt_cache_key=None)
    shape = evolve(shape, stop=(), stream=None, include_usage=False, output_mode=None)
    hashed.update(_encode(_plain(attrs.asdict(shape))))
    _read(hashed, turn, items)
    return hashed


def _read(hashed: blake2b, turn: Turn, items: Iterable[Json]) -> None:
    for step in _steps(turn, items):
        hashed.update(_encode(step))
        hashed.update(b"\n")


def answered(text: str, calls: Sequence[Call]) -> list[Json]:
    """What the model said and called, as the items that a client repeats."""
    said: list[Json] = [{"role": "assistant", "content": text}] if text else []
    return said + [{"type": "function_call", **call._asdict()} for call in calls]


def without_outputs(items: Sequence[Json]) -> tuple[Sequence[Json], dict[str, Any]]:
    """A conversation without the tool outputs that it ends with; and these, by call id."""
    outputs: dict[str, Any] = {}
    end = len(items)
    while end and items[end - 1].get("type") == "function_call_output":
        end -= 1
        outputs[text_of(items[end].get("call_id"))] = items[end].get("output")
    return items[:end], outputs


def _steps(turn: Turn, items: Iterable[Json]) -> Iterator[Any]:
    """The conversation in steps: all that the model said between two others is one of them."""
    said: list[str] = []
    calls: list[Any] = []
    for item in items:
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant":
                said += _texts(item.get("content"))
            case "function_call":
                calls.append(_call(turn, item))
            case "reasoning":
                continue
            case _:
                if said or calls:
                    yield ["".join(said), calls]
                said, calls = [], []
                yield _other(item)
    if said or calls:
        yield ["".join(said), calls]


def _call(turn: Turn, item: Json) -> Any:
    """A call by its meaning; of a tool that takes free text, the client repeats that alone."""
    name, arguments = text_of(item.get("name")), text_of(item.get("arguments"))
    tool = turn.tool(name)
    if tool is not None and tool.kind == "custom":
        return [item.get("call_id"), name, "text", to_text(arguments)]
    try:
        value = _plain(msgspec.json.decode(arguments.encode()))
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # its words are all there is
        return [item.get("call_id"), name, "unread", arguments]
    return [item.get("call_id"), name, "value", value]


def _other(item: Json) -> Any:
    """A message of somebody else, or a tool's output."""
    kept = {key: value for key, value in item.items() if key not in ("id", "status", "type")}
    for key in ("content", "output"):
        if isinstance(kept.get(key), str):
            kept[key] = [{"text": kept[key]}]
        elif is_list(kept.get(key)):
            kept[key] = [_part(part) for part in kept[key]]
    return [item.get("type", "message"), _plain(kept)]


def _part(part: object) -> object:
    """A part of a message; of text, only the text counts."""
    if isinstance(part, str):
        return {"text": part}
    text = as_json(part).get("text")
    return {"text": text} if isinstance(text, str) else part


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [text_of(as_json(part).get("text")) for part in as_list(content)]


def _plain(value: Any, depth: int = 0) -> Any:
    """A JSON value in one form: numbers of the same value are the same, as JavaScript has it."""
    if depth > DEEPEST:
        raise RecursionError
    if is_json(value):
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in cast("Sequence[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_INTEGERS:
        return int(value)
    return value
