"""The fields that a response repeats of its request, and what it says where the request did not."""

from __future__ import annotations

from typing import Any, Final

from pipeline.loose_json import Json, as_json, as_list

# In the order of the response. Clients built from the schema refuse an object that lacks one, and
# null where the schema has a number.
DEFAULTS: Final[Json] = {
    "model": "codex",
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}


def repeated(request: Json) -> dict[str, Any]:
    """The request's side of a response: no field is missing, and filling it again adds nothing."""
    fields: dict[str, Any] = {**DEFAULTS, **without_nulls(request)}
    fields["tools"] = [_tool(as_json(tool)) for tool in as_list(fields["tools"])]
    text = as_json(fields["text"])
    fields["text"] = {**text, "format": _format(as_json(text.get("format")))}
    fields["reasoning"] = {"effort": None, "summary": None, **as_json(fields["reasoning"])}
    return fields


def without_nulls(fields: Json) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _format(requested: Json) -> Json:
    if requested.get("type") != "json_schema":
        return requested or {"type": "text"}
    return {"description": None, "strict": None, **requested}
