"""What a response, an item and a part of one must have, whoever wrote them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

_NULLABLE: Final = {
    "completed_at", "error", "incomplete_details", "previous_response_id", "instructions", "usage",
    "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key", "user",
}  # fmt: skip
REQUIRED: Final = _NULLABLE | {
    "id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation",
    "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs",
    "temperature", "reasoning", "store", "background", "service_tier", "metadata",
}  # fmt: skip
_ITEM_FIELDS: Final[dict[str, tuple[set[str], set[str]]]] = {
    "message": ({"id", "status", "role", "content"}, set()),
    "reasoning": ({"id", "summary"}, {"content", "encrypted_content"}),
    "function_call": ({"id", "status", "call_id", "name", "arguments"}, {"namespace"}),
    "compaction": ({"id", "encrypted_content"}, set()),
    "custom_tool_call": ({"id", "status", "call_id", "name", "input"}, {"namespace"}),
}
_PART_FIELDS: Final[dict[str, set[str]]] = {
    "output_text": {"text", "annotations", "logprobs"},
    "reasoning_text": {"text"},
    "summary_text": {"text"},
}
_CODES: Final = {
    "invalid_prompt", "context_length_exceeded", "insufficient_quota", "rate_limit_exceeded",
    "server_error",
}  # fmt: skip


class BreachError(AssertionError):
    """The stream broke a rule."""


def must(held: object, rule: str, *seen: object) -> None:
    """Raise what was seen if the rule does not hold."""
    if not held:
        raise BreachError(rule, *seen)


def check_response(response: Json) -> None:
    """A whole response: fields may be null, none may be absent."""
    must(set(response) >= REQUIRED, "no field is absent", REQUIRED - set(response))
    nulls = {name for name in REQUIRED if response[name] is None}
    must(nulls <= _NULLABLE, "these are never null", nulls - _NULLABLE)
    must(response["object"] == "response", "a response", response["object"])
    status = response["status"]
    must((response["completed_at"] is not None) == (status == "completed"), "completed at", status)
    must((response["error"] is not None) == (status == "failed"), "an error if it failed", status)
    details = response["incomplete_details"]
    must((details is not None) == (status == "incomplete"), "why it is incomplete", details)
    if details is not None:
        reasons = ("max_output_tokens", "content_filter")
        must(details["reason"] in reasons, "a reason that clients know", details)
    if response["error"] is not None:
        must(set(response["error"]) == {"code", "message"}, "an error", response["error"])
        must(response["error"]["code"] in _CODES, "a code that clients know", response["error"])
    for item in response["output"]:
        check_item(item)
    check_usage(response["usage"])


def check_usage(usage: Json | None) -> None:
    """All integers, or nothing at all: a client fails the turn over anything else."""
    if usage is None:
        return
    details = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}
    names = {"input_tokens", "output_tokens", "total_tokens", *details}
    must(set(usage) == names, "the counts of a response", usage)
    counts = [usage[name] for name in names - set(details)]
    counts += [usage[name][part] for name, part in details.items()]
    must(all(type(count) is int for count in counts), "counts are whole numbers", usage)


def check_item(item: Json) -> None:
    """An item of a kind that clients know, with every field it must have."""
    must(item.get("type") in _ITEM_FIELDS, "a known kind of item", item)
    required, optional = _ITEM_FIELDS[item["type"]]
    fields = set(item) - {"type"}
    must(required <= fields <= required | optional, "an item has its fields", item)
    must(all(isinstance(item[name], str) for name in fields & {"id", "call_id"}), "ids", item)
    if "call_id" in item:
        must(item["call_id"] and item["call_id"] != item["id"], "two ids of a call", item)
    must(item["id"], "an item has an id", item)
    must(None not in item.values(), "absent rather than null", item)
    for part in [*item.get("content", []), *item.get("summary", [])]:
        check_part(part)


def check_part(part: Json) -> None:
    """A part of an item, with its fields and no others."""
    must(part.get("type") in _PART_FIELDS, "a known kind of part", part)
    must(set(part) == {"type"} | _PART_FIELDS[part["type"]], "a part has its fields", part)
