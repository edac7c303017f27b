"""The input of a Responses request becomes one conversation that any backend understands."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pipeline.assembly import Settings
from pipeline.loose_json import Json
from pipeline.requests.responses import ResponsesRequest
from pipeline.requests.shared.conversation import NO_OUTPUT
from pipeline.turn import Turn

HELLO: Json = {"role": "user", "content": "Hello."}
SAID: Json = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "Hello."}],
}
CALL: Json = {
    "type": "function_call",
    "call_id": "call_a",
    "name": "search",
    "arguments": '{"q": 1}',
}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_a", "output": "found"}
SEALED: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
PICTURE = "http://localhost/a.png"
TEXT_FILE = "data:text/plain;base64," + base64.b64encode(b"noted").decode()


def turn(*items: Json, settings: Settings | None = None, **more: Any) -> Turn:
    body = {"model": "gpt-5", "input": list(items), **more}
    return ResponsesRequest.from_json(body).turn(settings)


def answer(*content: Json, **more: Any) -> Json:
    return {"type": "message", "role": "assistant", "content": list(content), **more}


def user(*content: Json) -> Json:
    return {"type": "message", "role": "user", "content": list(content)}


def text(words: str, kind: str = "input_text") -> Json:
    return {"type": kind, "text": words}


ITEMS: list[tuple[str, list[Json], list[Json]]] = [
    ("a message without a type", [HELLO], [SAID]),
    ("a message with a type", [{"type": "message", **HELLO}], [SAID]),
    ("a message whose type is null", [{**HELLO, "type": None}], [SAID]),
    (
        "a message with what only its sender knows",
        [{**HELLO, "id": "msg_1", "status": "completed", "internal": {"a": 1}}],
        [SAID],
    ),
    (
        "parts of any kind of text",
        [user(text("a"), text("b", "text"))],
        [user(text("a"), text("b"))],
    ),
    (
        "an answer with its annotations",
        [answer({**text("a", "output_text"), "annotations": [], "logprobs": []}, id="msg_1")],
        [answer(text("a", "output_text"))],
    ),
    (
        "an answer as a string",
        [{"role": "assistant", "content": "a"}],
        [answer(text("a", "output_text"))],
    ),
    (
        "an answer's place among others",
        [answer(text("a", "output_text"), phase="commentary")],
        [answer(text("a", "output_text"), phase="commentary")],
    ),
    (
        "a refusal as the words it is",
        [answer({"type": "refusal", "refusal": "No."})],
        [answer(text("No.", "output_text"))],
    ),
    ("an answer that says nothing", [HELLO, answer()], [SAID]),
    (
        "a picture with its detail",
        [user({"type": "input_image", "image_url": PICTURE, "detail": "high", "file_id": None})],
        [user({"type": "input_image", "image_url": PICTURE, "detail": "high"})],
    ),
    (
        "a file of text",
        [user({"type": "input_file", "filename": "a.txt", "file_data": TEXT_FILE})],
        [user(text("a.txt:\nnoted"))],
    ),
    ("a call and its output", [CALL, OUTPUT], [CALL, OUTPUT]),
    (
        "a call with its ids and status",
        [{**CALL, "id": "fc_1", "status": "completed", "namespace": None}, {**OUTPUT, "id": None}],
        [CALL, OUTPUT],
    ),
    (
        "an output in parts",
        [CALL, {**OUTPUT, "output": [text("a"), {"type": "input_image", "image_url": PICTURE}]}],
        [CALL, {**OUTPUT, "output": [text("a"), {"type": "input_image", "image_url": PICTURE}]}],
    ),
    (
        "the older form of a failed output",
        [CALL, {**OUTPUT, "output": {"content": "it broke", "success": False}}],
        [CALL, {**OUTPUT, "output": "[the tool call failed]\nit broke"}],
    ),
    (
        "a failed output in parts",
        [CALL, {**OUTPUT, "output": {"content": [text("a")], "success": False}}],
        [CALL, {**OUTPUT, "output": [text("[the tool call failed]\n"), text("a")]}],
    ),
    (
        "a failed output without a word",
        [CALL, {**OUTPUT, "output": {"content": "", "success": False}}],
        [CALL, {**OUTPUT, "output": "[the tool call failed]\n"}],
    ),
    (
        "the older form that does not say whether it failed",
        [CALL, {**OUTPUT, "output": {"content": "fine", "success": None}}],
        [CALL, {**OUTPUT, "output": "fine"}],
    ),
    (
        "the older form with parts",
        [CALL, {**OUTPUT, "output": {"content_items": [text("a")], "success": True}}],
        [CALL, {**OUTPUT, "output": [text("a")]}],
    ),
    (
        "a call that never got an output",
        [CALL, HELLO],
        [CALL, {**OUTPUT, "output": NO_OUTPUT}, SAID],
    ),
    (
        "a call id that comes again",
        [CALL, OUTPUT, HELLO, CALL, OUTPUT],
        [CALL, OUTPUT, SAID, {**CALL, "call_id": "call_a_1"}, {**OUTPUT, "call_id": "call_a_1"}],
    ),
    (
        "a call of a tool that takes free text",
        [
            {
                "type": "custom_tool_call",
                "call_id": "call_a",
                "name": "exec",
                "input": 'say("hi")\n',
            },
            {"type": "custom_tool_call_output", "call_id": "call_a", "output": "hi"},
        ],
        [
            {**CALL, "name": "exec", "arguments": '{"input":"say(\\"hi\\")\\n"}'},
            {**OUTPUT, "output": "hi"},
        ],
    ),
    (
        "calls of OpenAI's own shell, with an output of either kind",
        [
            {"type": "local_shell_call", "call_id": "call_a", "action": {"command": ["ls"]}},
            OUTPUT,
            {"type": "shell_call", "call_id": "call_b", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "call_b", "output": [{"stdout": "a"}]},
        ],
        [
            {**CALL, "name": "local_shell", "arguments": '{"command":["ls"]}'},
            OUTPUT,
            {**CALL, "call_id": "call_b", "name": "shell", "arguments": '{"commands":["ls"]}'},
            {**OUTPUT, "call_id": "call_b", "output": '[{"stdout":"a"}]'},
        ],
    ),
    (
        "a patch of OpenAI's own kind",
        [
            {"type": "apply_patch_call", "call_id": "call_a", "operation": {"path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "call_a", "status": "completed"},
        ],
        [
            {**CALL, "name": "apply_patch", "arguments": '{"path":"a"}'},
            {**OUTPUT, "output": "completed"},
        ],
    ),
    ("sealed reasoning", [{**SEALED, "content": None, "status": None}, HELLO], [SEALED, SAID]),
    (
        "open reasoning",
        [{"type": "reasoning", "summary": [], "content": [text("Hm.", "reasoning_text")]}, HELLO],
        [{"type": "reasoning", "summary": [], "content": [text("Hm.", "reasoning_text")]}, SAID],
    ),
    (
        "reasoning of which only the summary is left",
        [{"type": "reasoning", "id": "rs_1", "summary": [text("Hm.", "summary_text")]}, HELLO],
        [SAID],
    ),
    ("what hosted tools left behind", [{"type": "web_search_call", "id": "ws_1"}, HELLO], [SAID]),
    (
        "a system message in the middle",
        [HELLO, {"role": "system", "content": "Be brief."}],
        [SAID, {"type": "message", "role": "developer", "content": [text("Be brief.")]}],
    ),
    (
        "what another agent says",
        [
            {
                "type": "agent_message",
                "author": "/a",
                "recipient": "/b",
                "content": [text("Go"), {"type": "encrypted_content", "encrypted_content": "on."}],
            }
        ],
        [user(text("[from /a to /b]\nGo\non."))],
    ),
    ("the wish to be shortened", [HELLO, {"type": "compaction_trigger"}], [SAID]),
]


@pytest.mark.parametrize(
    ("given", "expected"), [case[1:] for case in ITEMS], ids=[c[0] for c in ITEMS]
)
def test_items_reach_the_backend_as_what_they_are(given: list[Json], expected: list[Json]) -> None:
    assert list(turn(*given).items) == expected


def test_a_string_is_one_message_of_the_user() -> None:
    request = ResponsesRequest.from_json({"model": "gpt-5", "input": "Hello."})
    assert request.turn().items == (SAID,)


LEADING: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [text("Be"), text("kind.")]},
    HELLO,
]


def test_instructions_come_before_leading_system_messages() -> None:
    asked = turn(*LEADING, instructions="You are a poet.")
    assert asked.instructions == "You are a poet.\n\nBe brief.\n\nBe\nkind."
    assert asked.items == (SAID,)


def test_tools_in_front_do_not_hide_the_leading_messages() -> None:
    asked = turn({"type": "additional_tools", "role": "developer", "tools": []}, *LEADING)
    assert asked.instructions == "Be brief.\n\nBe\nkind."


def test_the_operator_can_leave_all_instructions_out() -> None:
    ignoring = Settings(ignore_client_system_prompt=True)
    late = {"role": "developer", "content": "Be late."}
    asked = turn(*LEADING, late, instructions="You are a poet.", settings=ignoring)
    assert asked.instructions == ""
    assert asked.items == (SAID,)


def test_the_effort_asked_for_last_counts() -> None:
    low = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    high = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    none = {"type": "configuration_update", "reasoning": None}
    assert turn(HELLO, reasoning={"effort": "medium"}).effort == "medium"
    asked = turn(low, HELLO, high, none, reasoning={"effort": "medium"})
    assert (asked.effort, asked.items) == ("high", (SAID,))


# -- earlier responses -----------------------------------------------------------------------------


def following(*items: Json, earlier: list[Json]) -> Turn:
    body = {"model": "gpt-5", "previous_response_id": "resp_1", "input": list(items)}
    return ResponsesRequest.from_json(body).turn(earlier=earlier)


def test_an_output_finds_its_call_in_an_earlier_response() -> None:
    assert following(OUTPUT, earlier=[HELLO, SEALED, CALL]).items == (SAID, SEALED, CALL, OUTPUT)


def test_tools_that_were_declared_earlier_are_still_there() -> None:
    more: Json = {"type": "additional_tools", "tools": [{"type": "function", "name": "search"}]}
    assert [tool.name for tool in following(HELLO, earlier=[more, HELLO]).tools] == ["search"]


def test_an_earlier_response_is_enough_to_go_on_from() -> None:
    body = {"model": "gpt-5", "previous_response_id": "resp_1"}
    assert ResponsesRequest.from_json(body).items([HELLO]) == (SAID,)


@pytest.mark.parametrize("given", [case[1] for case in ITEMS], ids=[case[0] for case in ITEMS])
def test_what_is_stored_of_an_input_goes_to_the_backend_as_the_input_did(given: list[Json]) -> None:
    request = ResponsesRequest.from_json({"model": "gpt-5", "input": given})
    stored = request.input_items()
    assert following(HELLO, earlier=stored).items[:-1] == request.turn().items
    assert all(item["id"] for item in stored)
    assert len({item["id"] for item in stored}) == len(stored)


# -- items that stand for others -------------------------------------------------------------------


def referring() -> ResponsesRequest:
    items = [HELLO, {"type": "item_reference", "id": "rs_1"}, {"id": "fc_1"}, OUTPUT]
    return ResponsesRequest.from_json({"model": "gpt-5", "input": items})


def test_references_are_replaced_by_the_items_they_name() -> None:
    request = referring()
    assert request.references == ("rs_1", "fc_1")
    resolved = request.resolved({"rs_1": SEALED, "fc_1": CALL})
    assert resolved.references == ()
    assert resolved.turn().items == (SAID, SEALED, CALL, OUTPUT)
    assert [item["type"] for item in resolved.input_items()] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


def test_a_reference_to_nothing_is_named() -> None:
    with pytest.raises(Exception, match="'fc_1', an item that is not stored here") as caught:
        referring().resolved({"rs_1": SEALED})
    assert vars(caught.value)["failure"].param == "input[2].id"


def test_a_compaction_is_replaced_by_what_it_stands_for() -> None:
    compaction = {"type": "compaction", "encrypted_content": "sealed"}
    lone = {"type": "function_call_output", "call_id": "lone", "output": ""}
    request = ResponsesRequest.from_json({"model": "gpt-5", "input": [compaction, HELLO]})
    assert request.compactions == ("sealed",)
    opened = request.opened({"sealed": [CALL, OUTPUT]})
    assert opened.turn().items == (CALL, OUTPUT, SAID)
    assert opened.input_items()[0]["encrypted_content"] == "sealed"
    body = {"model": "gpt-5", "input": [compaction, HELLO, lone]}
    wrong = ResponsesRequest.from_json(body).opened({"sealed": [CALL, OUTPUT]})
    with pytest.raises(Exception, match=r"input\[2\].call_id is 'lone'"):
        wrong.turn()


def test_a_compaction_that_cannot_be_opened_is_named() -> None:
    compaction = {"type": "compaction", "encrypted_content": "altered"}
    request = ResponsesRequest.from_json({"model": "gpt-5", "input": [HELLO, compaction]})
    with pytest.raises(Exception, match="cannot be decrypted") as caught:
        request.opened({"sealed": [HELLO]})
    assert vars(caught.value)["failure"].param == "input[1].encrypted_content"


@pytest.mark.parametrize("last", [True, False])
def test_a_request_says_whether_it_is_to_be_shortened(last: bool) -> None:
    trigger = [{"type": "compaction_trigger"}] if last else []
    request = ResponsesRequest.from_json({"model": "gpt-5", "input": [HELLO, *trigger]})
    assert request.wants_compaction is last
    assert len(request.input_items()) == 1
