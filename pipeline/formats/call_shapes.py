"""Tool calls in all the shapes that backends and clients write, read into fragments.

Backends disagree on field names and nesting. This is the only place that knows all variants;
everything behind it sees `ToolCallFragment`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pipeline.events import ToolCallFragment
from pipeline.loose_json import Json, as_json, as_list, text_of

CALL_TYPES: Final = frozenset({"function_call", "function", "tool_use", "tool_call"})
_NAME_KEYS: Final = ("name", "function_name", "tool_name", "call_name")
_ARGUMENT_KEYS: Final = ("arguments", "input", "args", "parameters")


def is_call(part: object) -> bool:
    """Whether an item or content part is a call, of any known type."""
    return text_of(as_json(part).get("type")) in CALL_TYPES


def call_name(part: Json) -> str:
    """The tool's name, from any of the known fields."""
    nested = as_json(part.get("function")).get("name")
    return next((v for v in [*map(part.get, _NAME_KEYS), nested] if isinstance(v, str) and v), "")


def call_id(part: Json) -> str:
    """The id for the client's output. `call_id` first: in Responses items `id` is another id."""
    ids = (part.get("call_id"), part.get("id"), as_json(part.get("function")).get("id"))
    return next((v for v in ids if isinstance(v, str) and v), "")


def call_arguments(part: Json) -> str | None:
    """The arguments as a string, unchanged where the backend sends one; None if it has none."""
    function = as_json(part.get("function"))
    for holder in (part, function):
        for key in _ARGUMENT_KEYS:
            value = holder.get(key)
            if isinstance(value, str):
                return value
            if isinstance(value, Mapping | list):
                return msgspec.json.encode(value).decode()
    return None


def has_unreadable_arguments(part: Json) -> bool:
    """Whether there are arguments, but neither as text nor as an object or array."""
    holders = (part, as_json(part.get("function")))
    given = [holder[key] for holder in holders for key in _ARGUMENT_KEYS if key in holder]
    return call_arguments(part) is None and any(value is not None for value in given)


def fragments_of(payload: Json, *, choice: int = 0, at: float = 0.0) -> list[ToolCallFragment]:
    """Every piece of a call in one streamed message: Responses event, Codex item or chat delta."""
    place: dict[str, Any] = {"choice": choice, "at": at}
    return [ToolCallFragment(**(place | fields)) for fields in _streamed(payload) if fields]


def whole_calls_of(message: Json, *, choice: int = 0, at: float = 0.0) -> list[ToolCallFragment]:
    """Every call of a finished chat message, each as one fragment that is done."""
    calls = [as_json(call) for call in as_list(message.get("tool_calls"))]
    legacy = as_json(message.get("function_call"))
    if legacy and not calls:
        calls = [legacy]
    return [
        ToolCallFragment(
            key=call_id(call) or ("function_call" if call is legacy else f"message:{position}"),
            call_id=call_id(call),
            name=call_name(call),
            whole=call_arguments(call),
            done=True,
            choice=choice,
            at=at,
        )
        for position, call in enumerate(calls)
        if call
    ]


def chat_call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as Chat Completions writes it."""
    function = {"name": name, "arguments": arguments or "{}"}
    return {"id": identity, "type": "function", "function": function}


def _streamed(payload: Json) -> Iterator[dict[str, Any]]:
    kind = text_of(payload.get("type")) or text_of(payload.get("method"))
    if "params" in payload:
        payload = as_json(payload["params"])
    match kind:
        case "response.output_item.added":
            item = as_json(payload.get("item"))
            yield _begun(item, call_key(payload, item))
        case "response.content_part.added":
            begun = _begun(as_json(payload.get("part")), call_key(payload, {}))
            place = payload.get("content_index")
            yield begun | ({"part": place} if begun and isinstance(place, int) else {})
        case "response.function_call_arguments.delta":
            delta = payload.get("delta")
            yield _piece(payload) | {"arguments": text_of(delta)}
        case "response.function_call_arguments.done":
            yield _piece(payload) | {"whole": call_arguments(payload), "done": True}
        case "response.output_item.done" | "rawResponseItem/completed":
            yield from _finished(payload)
        case _ if is_call(payload):
            yield from _finished({"item": payload})
        case _:
            yield from _chat_delta(payload)


def _begun(part: Json, key: str) -> dict[str, Any]:
    if not is_call(part):
        return {}
    fields = {"key": key, "call_id": call_id(part), "name": call_name(part)}
    return fields | {"whole": call_arguments(part) or None}


def _piece(payload: Json) -> dict[str, Any]:
    """An arguments event. Its own `id` is not the call's; only `call_id` can be."""
    named = {"call_id": text_of(payload.get("call_id")), "name": call_name(payload)}
    return {"key": call_key(payload, {})} | named


def _finished(payload: Json) -> Iterator[dict[str, Any]]:
    item = as_json(payload.get("item"))
    parts = [item] if is_call(item) else [p for p in as_list(item.get("content")) if is_call(p)]
    for ordinal, part in enumerate(map(as_json, parts)):
        yield {
            "key": call_key(payload, item),
            "call_id": call_id(part),
            "name": call_name(part),
            "whole": call_arguments(part),
            "done": True,
            "ordinal": ordinal,
        }


def _chat_delta(payload: Json) -> Iterator[dict[str, Any]]:
    """Calls in the payload itself, in its delta, and in the deltas of its choices."""
    yield from _increments(payload)
    yield from _increments(as_json(payload.get("delta")))
    for choice in map(as_json, as_list(payload.get("choices"))):
        index = choice.get("index")
        place = {"choice": index} if isinstance(index, int) else {}
        for fields in _increments(as_json(choice.get("delta"))):
            yield fields | place


def _increments(payload: Json) -> Iterator[dict[str, Any]]:
    for position, call in enumerate(map(as_json, as_list(payload.get("tool_calls")))):
        if call:
            yield _increment(call, f"index:{call.get('index', position)}")
    legacy = as_json(payload.get("function_call"))
    if legacy:
        yield _increment(legacy, "function_call")


def _increment(call: Json, key: str) -> dict[str, Any]:
    fields = {"key": key, "call_id": call_id(call), "name": call_name(call)}
    return fields | {"arguments": call_arguments(call) or ""}


def call_key(payload: Json, item: Json) -> str:
    """The backend's key for an item: its id, or its index in the output."""
    handle = text_of(payload.get("item_id")) or text_of(item.get("id"))
    return handle or call_id(item) or f"output:{payload.get('output_index', 0)}"
