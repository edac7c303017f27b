"""What is wrong with a Responses request: the field, and the words for it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.assembly import Settings
from pipeline.errors import ProxyError
from pipeline.loose_json import is_json
from pipeline.requests.responses import CompactRequest, ResponsesRequest

HELLO = {"role": "user", "content": "Hello."}
CALL = {"type": "function_call", "call_id": "call_a", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "found"}
SEARCH = {"type": "function", "name": "search"}


def message(**fields: Any) -> dict[str, Any]:
    return {"input": [{**HELLO, **fields}]}


def part(**fields: Any) -> dict[str, Any]:
    return message(content=[fields])


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [{"type": kind, **fields}]}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [fields]}


def space(*tools: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": "notes", "tools": list(tools), **fields}


WRONG: list[tuple[object, str | None, str]] = [
    ([], None, "the request body must be an object, not an array"),
    ("{}", None, "the request body must be an object, not a string"),
    # fields
    ({"model": None}, "model", "model must be a string, not null"),
    ({"model": ""}, "model", "model is empty"),
    ({"instructions": ["Be brief."]}, "instructions", "must be a string, not an array"),
    ({"stream": "yes"}, "stream", "must be true or false, not a string"),
    ({"store": 1}, "store", "must be true or false, not a whole number"),
    ({"background": "no"}, "background", "must be true or false"),
    ({"background": True, "store": False}, "background", "store is false"),
    ({"previous_response_id": ""}, "previous_response_id", "is empty"),
    ({"previous_response_id": 5}, "previous_response_id", "must be a string"),
    ({"max_tool_calls": 0}, "max_tool_calls", "must be at least 1"),
    ({"max_tool_calls": 1.5}, "max_tool_calls", "must be a whole number, not a number"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "must be true or false"),
    ({"temperature": "hot"}, "temperature", "must be a number, not a string"),
    ({"temperature": True}, "temperature", "must be a number, not true or false"),
    ({"temperature": 2.5}, "temperature", "must be from 0 to 2"),
    ({"top_p": -1}, "top_p", "must be from 0 to 2"),
    ({"max_output_tokens": "9"}, "max_output_tokens", "must be a whole number"),
    ({"truncation": "some"}, "truncation", 'must be one of "auto", "disabled", not "some"'),
    ({"include": "reasoning"}, "include", "must be an array, not a string"),
    ({"include": [5]}, "include[0]", "must be a string"),
    ({"metadata": []}, "metadata", "must be an object, not an array"),
    ({"metadata": {"a": 5}}, "metadata.a", "must be a string of at most 512 characters"),
    ({"metadata": {"a": "b" * 513}}, "metadata.a", "at most 512"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "a key of more than 64 characters"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "at most 16 pairs, not 17"),
    ({"conversation": "conv_1"}, "conversation", "send previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "send instructions and input"),
    ({"reasoning": "high"}, "reasoning", "must be an object"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", 'not "huge"'),
    ({"reasoning": {"summary": True}}, "reasoning.summary", "must be one of"),
    ({"text": []}, "text", "must be an object"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", 'not "loud"'),
    ({"text": {"format": "json"}}, "text.format", "must be an object, not a string"),
    ({"text": {"format": {}}}, "text.format.type", "is missing"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", 'not "xml"'),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "is missing"),
    (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": []}}},
        "text.format.schema",
        "must be an object",
    ),
    # input
    ({"input": 5}, "input", "must be a string or an array of items, not a whole number"),
    ({"input": {}}, "input", "must be a string or an array of items, not an object"),
    ({"input": []}, "input", "is empty; send at least one item"),
    ({"input": None}, "input", "is missing"),
    ({"input": ["Hello."]}, "input[0]", "must be an object, not a string"),
    ({"input": [{}]}, "input[0].type", "is missing"),
    ({"input": [{"type": 5}]}, "input[0].type", "must be a string, not a whole number"),
    (item("dream"), "input[0].type", 'is "dream", an item type that is not supported'),
    (item("message", content="Hello."), "input[0].role", "is missing"),
    (message(role="tool"), "input[0].role", 'not "tool"'),
    (message(content=None), "input[0].content", "is missing"),
    (message(content=[]), "input[0].content", "is empty"),
    (message(content={}), "input[0].content", "must be a string or an array of parts"),
    (message(content=["Hello."]), "input[0].content[0]", "must be an object"),
    (message(phase="late"), "input[0].phase", 'not "late"'),
    (part(type="smell"), "input[0].content[0].type", 'not "smell"'),
    (part(type="input_text"), "input[0].content[0].text", "is missing"),
    (part(type="input_audio"), "input[0].content[0]", "is audio"),
    (part(type="input_image"), "input[0].content[0].image_url", "is missing"),
    (
        part(type="input_image", file_id="file_1"),
        "input[0].content[0].file_id",
        "refers to an image that is not stored here",
    ),
    (
        part(type="input_image", image_url="data:image/png;base64,AAAA"),
        "input[0].content[0].image_url",
        "",
    ),
    (part(type="input_file", file_id="file_1"), "input[0].content[0].file_id", "not stored here"),
    (
        {
            "input": [
                {
                    "role": "assistant",
                    "content": [{"type": "input_image", "image_url": "http://a/b.png"}],
                }
            ]
        },
        "input[0].content",
        "contains an image, which the role assistant cannot send",
    ),
    (item("function_call", name="a", arguments="{}"), "input[0].call_id", "is missing"),
    (item("function_call", call_id="", name="a", arguments="{}"), "input[0].call_id", "is empty"),
    (item("function_call", call_id="c", name="", arguments="{}"), "input[0].name", "is empty"),
    (
        item("function_call", call_id="c", name="a", arguments={}),
        "input[0].arguments",
        "must be a string, not an object",
    ),
    (item("custom_tool_call", call_id="c", name="a"), "input[0].input", "is missing"),
    (
        item("custom_tool_call", call_id="c", name="a", input="\ud800"),
        "input[0]",
        "has half of a surrogate pair",
    ),
    (item("local_shell_call", action={}), "input[0].call_id", "is missing"),
    (item("function_call_output", call_id="c"), "input[0].output", "is missing"),
    (item("function_call_output", call_id="c", output=5), "input[0].output", "must be a string"),
    (item("function_call_output", call_id="c", output=None), "input[0].output", "not null"),
    (
        item("function_call_output", call_id="c", output={"success": False}),
        "input[0].output.content",
        "is missing",
    ),
    (
        item("function_call_output", call_id="c", output={"content": "x", "success": "no"}),
        "input[0].output.success",
        "must be true or false",
    ),
    (
        item("function_call_output", call_id="c", output={"content": [5]}),
        "input[0].output.content[0]",
        "must be an object",
    ),
    (item("reasoning", summary="Hm."), "input[0].summary", "must be an array"),
    (item("reasoning", encrypted_content=5), "input[0].encrypted_content", "must be a string"),
    (item("compaction"), "input[0].encrypted_content", "is missing"),
    (item("item_reference"), "input[0].id", "is missing"),
    (item("additional_tools", tools=[{}]), "input[0].tools[0].type", "is missing"),
    ({"input": [{"type": "compaction_trigger"}, HELLO]}, "input[0]", "must be the last item"),
    # tools
    ({"tools": {}}, "tools", "must be an array"),
    ({"tools": [5]}, "tools[0]", "must be an object"),
    (tool(name="search"), "tools[0].type", "is missing"),
    (tool(type=5), "tools[0].type", "must be a string"),
    (tool(type="function"), "tools[0].name", "is missing"),
    (tool(type="function", function=SEARCH), "tools[0].name", "is missing"),
    (tool(type="function", name=""), "tools[0].name", "from 1 to 128 characters"),
    (tool(type="function", name="a" * 129), "tools[0].name", "from 1 to 128 characters"),
    (tool(type="function", name="a", parameters=[]), "tools[0].parameters", "must be an object"),
    (tool(type="custom"), "tools[0].name", "is missing"),
    (tool(type="custom", name="a", format={"type": "dance"}), "tools[0].format.type", "dance"),
    (
        tool(type="custom", name="a", format={"type": "grammar", "syntax": "lark"}),
        "tools[0].format.definition",
        "is missing",
    ),
    (tool(type="namespace", name="a"), "tools[0].tools", "is missing"),
    ({"tools": [space({"type": "function"})]}, "tools[0].tools[0].name", "is missing"),
    ({"tools": [space(space())]}, "tools[0].tools[0].type", "a namespace within a namespace"),
    # tool_choice
    ({"tool_choice": "any"}, "tool_choice", 'not "any"'),
    ({"tool_choice": 5}, "tool_choice", "must be"),
    ({"tool_choice": {"type": "spell"}}, "tool_choice.type", 'not "spell"'),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "is missing"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools", "is missing"),
]


def refused(body: object, **more: Any) -> Any:
    whole = {"model": "gpt-5", "input": "Hello.", **body} if is_json(body) else body
    with pytest.raises(ProxyError) as caught:
        ResponsesRequest.from_json(whole, **more).turn()
    return caught.value.failure


@pytest.mark.parametrize(("body", "param", "words"), WRONG)
def test_a_wrong_field_is_named(body: object, param: str | None, words: str) -> None:
    failure = refused(body)
    assert (failure.status, failure.type) == (400, "invalid_request_error")
    assert failure.param == param
    assert words in failure.message
    assert failure.message.startswith(param or "the request body")


@pytest.mark.parametrize("missing", ["model", "input"])
@pytest.mark.parametrize("kind", [ResponsesRequest, CompactRequest])
def test_a_request_needs_a_model_and_input(missing: str, kind: type[ResponsesRequest]) -> None:
    body = {"model": "gpt-5", "input": "Hello."}
    with pytest.raises(ProxyError, match="is missing; a request needs a model and input") as caught:
        kind.from_json({name: one for name, one in body.items() if name != missing})
    assert caught.value.failure.param == missing


UNFIT: list[tuple[dict[str, Any], str, str]] = [
    ({"input": [HELLO, OUTPUT]}, "input[1].call_id", "'call_a', the id of no call before it"),
    ({"input": [HELLO, OUTPUT, CALL]}, "input[1].call_id", "no call before it"),
    ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2].call_id", "a call that already has an output"),
    ({"input": [HELLO, {"type": "item_reference", "id": "rs_1"}]}, "input[1].id", "'rs_1'"),
    ({"input": [{"id": "rs_1"}]}, "input[0].id", "not stored here"),
    (
        {"input": [HELLO, {"type": "compaction", "encrypted_content": "x"}]},
        "input[1].encrypted_content",
        "cannot be decrypted here",
    ),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input", "has no message"),
    ({"input": [{"type": "compaction_trigger"}]}, "input", "has no message"),
    ({"tools": [SEARCH, SEARCH]}, "tools[1].name", "'search', which another tool has"),
    ({"tools": [SEARCH, {**SEARCH, "type": "custom"}]}, "tools[1].name", "names must differ"),
    ({"tools": [space(SEARCH, SEARCH)]}, "tools[0].tools[1].name", "names must differ"),
    (
        {"input": [{"type": "additional_tools", "tools": [SEARCH, SEARCH]}, HELLO]},
        "input[0].tools[1].name",
        "names must differ",
    ),
    ({"tool_choice": "required"}, "tool_choice", "there is no function to call"),
    (
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        "tool_choice",
        "there is no function to call",
    ),
    (
        {"tools": [SEARCH], "tool_choice": {"type": "function", "name": "read"}},
        "tool_choice.name",
        "'read', which is not declared; the tools are: search",
    ),
    (
        {
            "tools": [SEARCH],
            "tool_choice": {"type": "allowed_tools", "tools": [{**SEARCH, "name": "x"}]},
        },
        "tool_choice.tools",
        "'x', which is not declared",
    ),
]


@pytest.mark.parametrize(("body", "param", "words"), UNFIT)
def test_fields_that_do_not_fit_each_other_are_named(
    body: dict[str, Any], param: str, words: str
) -> None:
    failure = refused(body)
    assert (failure.status, failure.param) == (400, param)
    assert words in failure.message


def test_a_request_of_system_messages_alone_is_refused_where_they_are_left_out() -> None:
    body = {"model": "gpt-5", "input": [{"role": "developer", "content": "Be brief."}]}
    with pytest.raises(ProxyError, match="only system messages") as caught:
        ResponsesRequest.from_json(body).turn(Settings(ignore_client_system_prompt=True))
    assert caught.value.failure.param == "input"


def test_namespaces_cannot_be_nested_without_end() -> None:
    nested: dict[str, Any] = space()
    for _ in range(500):
        nested = space(nested)
    assert "within a namespace" in refused({"tools": [nested]}).message


def test_a_part_of_a_request_is_enough_for_a_replay() -> None:
    request = ResponsesRequest.from_json({"tools": [SEARCH]}, partial=True)
    assert request.model == "codex"
    assert request.stream is None
    assert [tool.name for tool in request.turn().tools] == ["search"]
