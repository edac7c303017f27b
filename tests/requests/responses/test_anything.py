"""Whatever comes as a Responses request is taken, or refused as the client's mistake."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import Failure, ProxyError
from pipeline.loose_json import as_list, is_json
from pipeline.requests.responses import ResponsesRequest
from pipeline.turn import Turn

FIELDS = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "name",
        "call_id",
        "output",
        "arguments",
        "input",
        "id",
        "tools",
        "parameters",
        "format",
        "summary",
        "encrypted_content",
        "namespace",
        "image_url",
        "file_data",
        "definition",
        "syntax",
        "action",
        "schema",
        "effort",
        "reasoning",
        "mode",
    ]
)
KINDS = st.sampled_from(
    [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "reasoning",
        "compaction",
        "compaction_trigger",
        "item_reference",
        "additional_tools",
        "shell_call",
        "shell_call_output",
        "agent_message",
        "configuration_update",
        "web_search_call",
        "function",
        "custom",
        "namespace",
        "grammar",
        "text",
        "input_text",
        "input_image",
        "input_file",
        "refusal",
        "json_schema",
        "allowed_tools",
        "user",
        "assistant",
        "developer",
        "required",
    ]
)
PARAMETERS = st.sampled_from(
    [
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "metadata",
        "store",
        "background",
        "previous_response_id",
        "max_tool_calls",
        "temperature",
        "truncation",
    ]
)
WORDS = st.text(st.characters(exclude_categories=()), max_size=9)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 20)
    | st.floats(allow_nan=False)
    | KINDS
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=12,
)
BODIES = st.dictionaries(PARAMETERS, ANYTHING, max_size=4) | ANYTHING
ITEMS = st.lists(
    st.fixed_dictionaries({"type": KINDS}, optional={"role": KINDS, "content": ANYTHING})
    | st.dictionaries(FIELDS, ANYTHING, min_size=2, max_size=6),
    max_size=4,
)


def outcome(body: object, found: object = None) -> Turn | Failure:
    earlier = [item for item in as_list(found) if is_json(item)]
    try:
        request = ResponsesRequest.from_json(body)
        request.echo()
        request.input_items()
        hello = {"role": "user", "content": "Hello."}
        stored = {name: hello for name in request.references}  # noqa: C420
        sealed = {name: [hello] for name in request.compactions}
        return request.resolved(stored).opened(sealed).turn(earlier=earlier)
    except ProxyError as error:
        return error.failure


def check(result: Turn | Failure) -> None:
    if isinstance(result, Failure):
        assert (result.status, result.type) == (400, "invalid_request_error")
        assert len(result.message) < 6000
    else:
        assert len(result.tool_names) == len(result.tools)
        made = [item["call_id"] for item in result.items if item["type"] == "function_call"]
        assert len(set(made)) == len(made)


@settings(max_examples=200, deadline=None)
@given(BODIES, ANYTHING)
def test_whatever_comes_is_a_turn_or_a_400(sent: Any, found: object) -> None:
    whole = {"model": "gpt-5", "input": "Hello.", **sent} if is_json(sent) else sent
    check(outcome(whole, found))


@settings(max_examples=200, deadline=None)
@given(ITEMS, ITEMS)
def test_whatever_items_and_tools_come_make_a_turn_or_a_400(items: Any, tools: Any) -> None:
    check(outcome({"model": "gpt-5", "input": items, "tools": tools}))
