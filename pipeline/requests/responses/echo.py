"""What a response repeats of its request, and the stored form of input items."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from pipeline.formats.response_fields import DEFAULTS, repeated, without_nulls
from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.requests.responses.items import MADE_UP

_PREFIXES: Final = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "compaction": "cmp_",
    "additional_tools": "at_",
}


def echo(given: Json) -> dict[str, Any]:
    """The fields of a response that are its request's, none of them missing."""
    known = {name: given.get(name) for name in DEFAULTS}
    text = {"verbosity": "medium"} | without_nulls(as_json(given.get("text")))
    return repeated(known | {"text": text})


def shown(item: Json) -> Json:
    """An input item as it is stored: with its type and an id, a message's text in parts."""
    kind = text_of(item.get("type")) or "message"
    identified = {"id": f"{_PREFIXES.get(kind, MADE_UP)}{uuid4().hex}", "type": kind}
    whole = identified | without_nulls(item)
    if kind == "message":
        whole = {"status": "completed", **whole, "content": _parts(whole)}
    return whole


def _parts(message: Json) -> list[Json]:
    content = message.get("content")
    if not isinstance(content, str):
        return [*as_list(content)]
    if message.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": []}]
    return [{"type": "input_text", "text": content}]
