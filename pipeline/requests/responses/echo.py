"""What a response repeats of its request, and what is shown of the request's input."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from pipeline.loose_json import Json, as_json, as_list, text_of
from pipeline.requests.responses.items import MADE_UP

_DEFAULTS: Final[dict[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What OpenAI's responses say of a request that did not."""
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
    repeated = {name: given.get(name, default) for name, default in _DEFAULTS.items()}
    text, reasoning = as_json(given.get("text")), as_json(given.get("reasoning"))
    form = text.get("format") or {"type": "text"}
    return repeated | {
        "model": given.get("model"),
        "tools": [_tool(as_json(tool)) for tool in as_list(given.get("tools"))],
        "text": {"verbosity": "medium"} | _present(text) | {"format": form},
        "reasoning": {"effort": None, "summary": None} | dict(reasoning),
    }


def shown(item: Json) -> Json:
    """An input item as it is stored: with its type and an id, a message's words in parts."""
    kind = text_of(item.get("type")) or "message"
    identified = {"id": f"{_PREFIXES.get(kind, MADE_UP)}{uuid4().hex}", "type": kind}
    whole = identified | _present(item)
    if kind == "message":
        whole = {"status": "completed", **whole, "content": _parts(whole)}
    return whole


def _present(fields: Json) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _parts(message: Json) -> list[Json]:
    words = message.get("content")
    if not isinstance(words, str):
        return [*as_list(words)]
    if message.get("role") == "assistant":
        return [{"type": "output_text", "text": words, "annotations": []}]
    return [{"type": "input_text", "text": words}]
