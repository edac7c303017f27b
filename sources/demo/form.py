"""The JSON schema of a request, as the scripted model understands it."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.formats.strict_schema import first_violation
from pipeline.loose_json import Json, as_json, as_list, text_of
from sources.app_server.protocol.prompts import FORM_RULE

_NOT_CLOSED = "'additionalProperties' is required to be supplied and to be false"


def wanted_schema(request: Json) -> Json | None:
    """The schema for the answer, from the request's format or else from its instructions."""
    form = _format(request)
    if form.get("type") == "json_schema":
        return as_json(form.get("schema"))
    for item in map(as_json, as_list(request.get("input"))):
        if item.get("role") == "developer":
            for part in map(as_json, as_list(item.get("content"))):
                _, found, rest = text_of(part.get("text")).partition(f"{FORM_RULE}\n")
                if found:
                    return as_json(msgspec.json.decode(rest.partition("\n")[0]))
    return None


def refused_schema(request: Json) -> dict[str, Any] | None:
    """The error for a strict schema that OpenAI rejects; None if it accepts it."""
    form = _format(request)
    if form.get("type") != "json_schema" or form.get("strict") is not True:
        return None
    found = first_violation(as_json(form.get("schema")))
    if found is None:
        return None
    problem = _NOT_CLOSED if found.keyword == "additionalProperties" else found.problem
    return {
        "error": {
            "message": f"Invalid schema for response_format '{text_of(form.get('name'))}': "
            f"In context={found.path}, {problem}.",
            "type": "invalid_request_error",
            "param": "text.format.schema",
            "code": "invalid_json_schema",
        }
    }


def _format(request: Json) -> Json:
    return as_json(as_json(request.get("text")).get("format"))
