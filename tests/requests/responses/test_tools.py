"""The tools of a Responses request: functions, free text and namespaces as one set of functions."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.assembly import Settings
from pipeline.formats.custom_tools import PARAMETERS
from pipeline.loose_json import Json
from pipeline.requests.responses import ResponsesRequest
from pipeline.requests.responses.tools import joined
from pipeline.turn import NamedTool, Tool, Turn
from sources.app_server.turn.kept import KeptThread
from sources.app_server.turn.meaning import Call, digest, without_outputs

HELLO: Json = {"role": "user", "content": "Hello."}
SCHEMA: Json = {"$schema": "x", "type": "object", "properties": {"q": {}}}
SEARCH: Json = {"type": "function", "name": "search", "description": "Finds.", "parameters": SCHEMA}
READ: Json = {"type": "function", "name": "read", "strict": None}
EXEC: Json = {"type": "custom", "name": "exec", "description": "Runs code."}
GRAMMAR: Json = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}


def space(name: str, *tools: Json, **more: Any) -> Json:
    return {"type": "namespace", "name": name, "tools": list(tools), **more}


def turn(*tools: Json, items: list[Json] | None = None, **more: Any) -> Turn:
    body = {"model": "gpt-5", "input": items or [HELLO], "tools": list(tools), **more}
    return ResponsesRequest.from_json(body).turn()


def names(asked: Turn) -> list[str]:
    return [tool.name for tool in asked.tools]


def test_a_function_is_declared_as_it_is() -> None:
    assert turn(SEARCH, READ, {**SEARCH, "name": "strict", "strict": True}).tools == (
        Tool("search", SCHEMA, "Finds."),
        Tool("read"),
        Tool("strict", SCHEMA, "Finds.", strict=True),
    )


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (None, "Runs code."),
        ({"type": "text"}, "Runs code."),
        (
            GRAMMAR,
            "Runs code.\n\nThe input must match this Lark grammar to the letter:\nstart: /.+/",
        ),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a+"},
            "Runs code.\n\nThe input must match this regular expression to the letter:\na+",
        ),
    ],
)
def test_a_tool_of_free_text_is_a_function_of_one_string(form: Json | None, words: str) -> None:
    assert turn({**EXEC, "format": form}).tools == (Tool("exec", PARAMETERS, words, kind="custom"),)


def test_the_tools_of_a_namespace_get_names_of_both() -> None:
    first, second = turn(space("notes", SEARCH, EXEC, description="All about notes.")).tools
    assert first == Tool(
        "notes__search",
        SCHEMA,
        "Finds.\n\nAbout notes: All about notes.",
        namespace="notes",
        own_name="search",
    )
    assert (second.name, second.kind, second.namespace) == ("notes__exec", "custom", "notes")
    assert second.description == "Runs code."


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([space("a", SEARCH), space("b", SEARCH)], ["a__search", "b__search"]),
        ([space("mcp__a__", SEARCH)], ["mcp__a__search"]),
        ([space("my notes", SEARCH)], ["my_notes__search"]),
        (
            [space("a", SEARCH), {**SEARCH, "name": "a__search"}],
            ["a__search_eeafdbe4", "a__search"],
        ),
        ([space("a b", SEARCH), space("a.b", SEARCH)], ["a_b__search", "a_b__search_69cdf25a"]),
        ([space("a", READ), space("a", SEARCH)], ["a__read", "a__search"]),
        ([space("a", {"type": "mcp"}, READ)], ["a__read"]),
    ],
)
def test_joined_names_are_legal_and_differ(tools: list[Json], expected: list[str]) -> None:
    assert names(turn(*tools)) == expected


def test_a_joined_name_that_is_too_long_is_cut_and_still_its_own() -> None:
    one, other = joined("n" * 60, "search_a"), joined("n" * 60, "search_b")
    assert len(one) == len(other) == 64
    assert one != other
    assert joined("n" * 60, "search_a") == one


def test_tools_in_the_input_join_the_others_and_may_replace_them() -> None:
    more: Json = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [space("notes", READ), READ],
    }
    again: Json = {**more, "tools": [{**READ, "description": "Anew."}]}
    asked = turn(SEARCH, items=[more, HELLO, again])
    assert names(asked) == ["notes__read", "read", "search"]
    assert asked.tools[1].description == "Anew."
    assert len(asked.items) == 1


# -- the choice ------------------------------------------------------------------------------------

READING = "notes__read"
ALL = (SEARCH, EXEC, space("notes", READ, SEARCH))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (None, "auto"),
        ({"type": "function", "name": "search"}, NamedTool("search")),
        ({"type": "custom", "name": "exec"}, NamedTool("exec")),
        ({"type": "function", "name": "search", "namespace": "notes"}, NamedTool("notes__search")),
        ({"type": "function", "name": "read"}, NamedTool("notes__read")),
        ({"type": "function", "name": "notes__read"}, NamedTool("notes__read")),
        ({"type": "web_search_preview"}, "auto"),
    ],
)
def test_a_choice_is_made_in_the_backends_names(choice: object, expected: object) -> None:
    assert turn(*ALL, tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ([{"type": "function", "name": "search"}], ["search"]),
        (
            [{"type": "custom", "name": "exec"}, {"type": "function", "name": "read"}],
            ["exec", "notes__read"],
        ),
        ([{"type": "namespace", "name": "notes"}], ["notes__read", "notes__search"]),
        ([{"type": "mcp", "server_label": "a"}, {"type": "custom", "name": "exec"}], ["exec"]),
    ],
)
def test_only_the_allowed_tools_are_there(allowed: list[Json], expected: list[str]) -> None:
    asked = turn(*ALL, tool_choice={"type": "allowed_tools", "mode": "required", "tools": allowed})
    assert names(asked) == expected
    assert asked.tool_choice == "required"


@pytest.mark.parametrize(("wish", "many"), [(None, True), (True, True), (False, False)])
def test_calls_come_one_at_a_time_if_the_request_says_so(wish: bool | None, many: bool) -> None:
    assert turn(SEARCH, parallel_tool_calls=wish).parallel_tool_calls is many


# -- calls in the history --------------------------------------------------------------------------


def called(name: str, call_id: str = "call_a", **more: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **more}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (called("search"), "search"),
        (called("search", namespace="notes"), "notes__search"),
        (called("read"), "notes__read"),
        (called("read", namespace="elsewhere"), "elsewhere__read"),
        (called("unknown"), "unknown"),
        ({**called("exec"), "type": "custom_tool_call", "input": "1"}, "exec"),
    ],
)
def test_calls_go_to_the_backend_under_the_names_it_knows(call: Json, name: str) -> None:
    assert turn(*ALL, items=[HELLO, call]).items[1]["name"] == name


NOTES = space("notes", SEARCH)
TEXT = 'print("hi")'
MADE = (
    Call("call_a", "exec", '{ "input": "print(\\"hi\\")" }'),
    Call("call_b", "notes__search", '{"q": "a"}'),
)
"""What the model called, to the letter: it writes JSON as it likes."""
COMES_BACK: list[Json] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_a", "name": "exec", "input": TEXT},
    {**called("search", "call_b", namespace="notes"), "id": "fc_1", "arguments": '{"q": "a"}'},
]
OUTPUTS: list[Json] = [
    {"type": "custom_tool_call_output", "call_id": "call_a", "output": "hi"},
    {"type": "function_call_output", "call_id": "call_b", "output": "found"},
]


def held(asked: Turn) -> KeptThread:
    session: Any = None
    return KeptThread(session, asked, "Wait.", MADE)


def continues(turn: Turn, thread: KeptThread) -> bool:
    before, outputs = without_outputs(turn.items)
    return digest(turn, before) in thread.digests and thread.waits_for(outputs)


def test_a_follow_up_with_free_text_and_namespaces_continues_a_held_turn() -> None:
    first = turn(EXEC, NOTES)
    second = turn(EXEC, NOTES, items=[HELLO, *COMES_BACK, *OUTPUTS])
    assert continues(second, held(first))


def test_a_follow_up_by_the_id_of_the_response_continues_a_held_turn() -> None:
    tools = {"model": "gpt-5", "tools": [EXEC, NOTES]}
    request = ResponsesRequest.from_json({**tools, "input": "Hello."})
    after = {**tools, "input": OUTPUTS, "previous_response_id": "resp_1"}
    second = ResponsesRequest.from_json(after).turn(earlier=[*request.input_items(), *COMES_BACK])
    assert continues(second, held(request.turn()))


@pytest.mark.parametrize(
    "changed",
    [{"input": 'print("ho")'}, {"name": "other"}, {"namespace": "notes"}, {"call_id": "call_c"}],
)
def test_a_follow_up_with_another_call_continues_nothing(changed: dict[str, Any]) -> None:
    back = [*COMES_BACK[:2], {**COMES_BACK[2], **changed}, COMES_BACK[3]]
    outputs = [{**OUTPUTS[0], **{k: v for k, v in changed.items() if k == "call_id"}}, OUTPUTS[1]]
    second = turn(EXEC, NOTES, items=[HELLO, *back, *outputs])
    assert not continues(second, held(turn(EXEC, NOTES)))


def test_the_operators_word_on_parallel_calls_wins() -> None:
    body = {"model": "gpt-5", "input": "Hello.", "parallel_tool_calls": True}
    one = Settings(parallel_tool_calls="false")
    assert not ResponsesRequest.from_json(body).turn(one).parallel_tool_calls


def test_very_many_tools_with_similar_names_get_different_names_quickly() -> None:
    members = [{**SEARCH, "name": f"x{chr(0x4E00 + number)}"} for number in range(3_000)]
    body = {"model": "m", "input": "Hi", "tools": [space("a", *members)]}
    turn = ResponsesRequest.from_json(body).turn()
    assert len({tool.name for tool in turn.tools}) == 3_000
