"""The messages of a chat as instructions and items."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pipeline.assembly import Settings
from pipeline.errors import ProxyError
from pipeline.loose_json import Json
from pipeline.requests.chat import ChatRequest
from pipeline.requests.shared.conversation import NO_OUTPUT
from pipeline.turn import Turn

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n...").decode()
TEXT = {"type": "text", "text": "a"}
USER = {"role": "user", "content": "Hi."}
SAID = {"type": "message", "role": "user", "content": "Hi."}


def turn_of(*messages: object, **settings: Any) -> Turn:
    body = {"model": "gpt-5", "messages": list(messages)}
    return ChatRequest.from_json(body).turn(Settings(**settings))


def user(*parts: object) -> Json:
    return {"role": "user", "content": list(parts)}


def calls(*ids: str, content: object = None, name: str = "f") -> Json:
    made = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": '{"a":  1}'}}
        for one in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def tool(call_id: str, content: object = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def call_item(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"a":  1}'}


def output_item(call_id: str, output: object = "done") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def item(role: str, content: object) -> Json:
    return {"type": "message", "role": role, "content": content}


def data_url(text: bytes, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(text).decode()}"


# -- who said it -----------------------------------------------------------------------------------


def test_the_messages_before_the_conversation_are_its_instructions() -> None:
    turn = turn_of(
        {"role": "system", "content": "Be brief."},
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}],
        },
        {"role": "system", "content": ""},
        USER,
    )
    assert turn.instructions == "Be brief.\n\nBe\nkind."
    assert turn.items == (SAID,)


def test_a_system_message_further_down_stays_in_its_place() -> None:
    turn = turn_of(USER, {"role": "system", "content": "Now in French."}, USER)
    assert turn.instructions == ""
    assert turn.items == (SAID, item("developer", "Now in French."), SAID)


def test_system_messages_alone_are_the_conversation() -> None:
    turn = turn_of({"role": "system", "content": "Tell a joke."})
    assert (turn.instructions, turn.items) == ("", (item("developer", "Tell a joke."),))


def test_an_operator_can_leave_the_clients_system_prompt_out() -> None:
    system = {"role": "system", "content": "Be evil."}
    developer = {"role": "developer", "content": "Be worse."}
    turn = turn_of(system, USER, developer, USER, ignore_client_system_prompt=True)
    assert (turn.instructions, turn.items) == ("", (SAID, SAID))


def test_nothing_is_left_to_answer_where_all_was_left_out() -> None:
    with pytest.raises(ProxyError, match="only system messages") as raised:
        turn_of({"role": "system", "content": "Hi."}, ignore_client_system_prompt=True)
    assert raised.value.failure.param == "messages"


# -- parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}),
        ({"type": "input_text", "text": "a"}, {"type": "input_text", "text": "a"}),
        ({"type": "output_text", "text": "a"}, {"type": "input_text", "text": "a"}),
        ({"type": "refusal", "refusal": "no"}, {"type": "input_text", "text": "no"}),
        (
            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
            {"type": "input_image", "image_url": PNG, "detail": "low"},
        ),
        (
            {"type": "image_url", "image_url": {"url": PNG, "detail": None}},
            {"type": "input_image", "image_url": PNG},
        ),
        ({"type": "image_url", "image_url": PNG}, {"type": "input_image", "image_url": PNG}),
        (
            {"type": "input_image", "image_url": PNG, "detail": "high"},
            {"type": "input_image", "image_url": PNG, "detail": "high"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "input_image", "image_url": "https://example.org/a.png"},
        ),
        # files of text
        (
            {"type": "file", "file": {"file_data": data_url("Grüße".encode()), "filename": "a.md"}},
            {"type": "input_text", "text": "a.md:\nGrüße"},
        ),
        (
            {"type": "input_file", "file_data": data_url(b"{}", "application/json")},
            {"type": "input_text", "text": "{}"},
        ),
        (
            {"type": "file", "file": {"file_data": "data:text/plain;charset=utf-8,a%20b"}},
            {"type": "input_text", "text": "a b"},
        ),
        (
            {"type": "file", "file": {"file_data": base64.b64encode(b"bare text").decode()}},
            {"type": "input_text", "text": "bare text"},
        ),
        (
            {"type": "file", "file": {"file_data": "just text"}},
            {"type": "input_text", "text": "just text"},
        ),
    ],
)
def test_a_part_is_words_or_a_picture(part: Json, said: Json) -> None:
    assert turn_of(user(part)).items == (item("user", [said]),)


# -- calls and outputs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "before"),
    [
        (None, []),
        ("", []),
        ([], []),
        ([{"type": "text", "text": ""}], []),
        ("Let me look.", [item("assistant", "Let me look.")]),
        (
            [{"type": "text", "text": "Let me."}, {"type": "refusal", "refusal": "Or not."}],
            [
                item(
                    "assistant",
                    [
                        {"type": "output_text", "text": "Let me."},
                        {"type": "output_text", "text": "Or not."},
                    ],
                )
            ],
        ),
    ],
)
def test_calls_and_their_outputs_are_items_in_order(content: object, before: list[Json]) -> None:
    turn = turn_of(USER, calls("a", "b", content=content), tool("b"), tool("a", "A"), USER)
    assert turn.items == (
        SAID,
        *before,
        call_item("a"),
        call_item("b"),
        output_item("b"),
        output_item("a", "A"),
        SAID,
    )


def test_an_assistant_who_said_nothing_leaves_no_item() -> None:
    empty: list[Json] = [
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]
    assert turn_of(USER, *empty, USER).items == (SAID, SAID)


def test_an_assistant_who_refused_is_heard() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    assert turn_of(USER, refused, USER).items[1] == item("assistant", "I will not.")


def test_earlier_reasoning_is_not_sent() -> None:
    thought = {"role": "assistant", "content": "42", "reasoning_content": "Hm."}
    assert turn_of(USER, thought, USER).items[1] == item("assistant", "42")


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}],
            [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": PNG},
            ],
        ),
    ],
)
def test_an_output_may_be_words_or_words_and_pictures(content: object, output: object) -> None:
    assert turn_of(USER, calls("a"), tool("a", content)).items[-1] == output_item("a", output)


def test_a_call_that_never_got_its_output_gets_one_behind_its_burst() -> None:
    turn = turn_of(USER, calls("a", "b"), tool("b"), USER, calls("c"))
    assert turn.items == (
        SAID,
        call_item("a"),
        call_item("b"),
        output_item("b"),
        output_item("a", NO_OUTPUT),
        SAID,
        call_item("c"),
        output_item("c", NO_OUTPUT),
    )


def test_an_output_that_comes_late_is_the_output() -> None:
    turn = turn_of(USER, calls("a", "b"), tool("a"), USER, tool("b"))
    assert turn.items[-2:] == (SAID, output_item("b"))
    assert len(turn.items) == 6


def test_an_id_that_is_used_again_is_made_another() -> None:
    turn = turn_of(USER, calls("a"), tool("a", "1"), calls("a"), tool("a", "2"), calls("a_1"))
    assert turn.items[1:] == (
        call_item("a"),
        output_item("a", "1"),
        call_item("a_1"),
        output_item("a_1", "2"),
        call_item("a_1_1"),
        output_item("a_1_1", NO_OUTPUT),
    )


def test_a_thousand_calls_of_one_id_get_different_ids() -> None:
    loop = [message for _ in range(1000) for message in (calls("a"), tool("a"))]
    ids = [one["call_id"] for one in turn_of(USER, *loop).items if "arguments" in one]
    assert len(set(ids)) == 1000


def legacy(name: str) -> Json:
    return {
        "role": "assistant",
        "content": None,
        "function_call": {"name": name, "arguments": "{}"},
    }


def test_calls_of_legacy_functions_find_their_outputs_by_name() -> None:
    outputs = [{"role": "function", "name": name, "content": name * 2} for name in ("g", "f", "f")]
    turn = turn_of(USER, legacy("f"), legacy("g"), outputs[0], outputs[1], legacy("f"), outputs[2])
    named = {one["call_id"]: one["name"] for one in turn.items if "arguments" in one}
    answered = [(named[one["call_id"]], one["output"]) for one in turn.items if "output" in one]
    assert len(named) == 3
    assert answered == [("g", "gg"), ("f", "ff"), ("f", "ff")]
    assert turn == turn_of(
        USER, legacy("f"), legacy("g"), outputs[0], outputs[1], legacy("f"), outputs[2]
    )


def test_the_output_of_a_function_that_was_called_again_is_that_of_the_last_call() -> None:
    output = {"role": "function", "name": "f", "content": "done"}
    turn = turn_of(USER, legacy("f"), USER, legacy("f"), output)
    first, second = (one["call_id"] for one in turn.items if "arguments" in one)
    outputs = [(one["call_id"], one["output"]) for one in turn.items if "output" in one]
    assert outputs == [(first, NO_OUTPUT), (second, "done")]


def test_a_made_up_id_is_never_one_that_the_client_uses() -> None:
    turn = turn_of(USER, calls("call_function_1"), tool("call_function_1"), legacy("g"))
    ids = [one["call_id"] for one in turn.items if "arguments" in one]
    assert len(set(ids)) == 2


# -- what is wrong ---------------------------------------------------------------------------------

PICTURE = {"type": "image_url", "image_url": {"url": PNG}}
WRONG: list[tuple[list[object], str, str]] = [
    ([{}], "messages[0].role", "is missing"),
    (
        [USER, {"role": "robot", "content": ""}],
        "messages[1].role",
        '"system", "developer", "user", "assistant", "tool", "function", not "robot"',
    ),
    ([{"role": None}], "messages[0].role", "not null"),
    ([{"role": "user"}], "messages[0].content", "is missing; it must be a string or an array"),
    ([{"role": "user", "content": None}], "messages[0].content", "only an assistant message"),
    ([{"role": "system", "content": None}], "messages[0].content", "is missing"),
    ([user()], "messages[0].content", "is empty; it must have at least one part"),
    (
        [{"role": "user", "content": 5}],
        "messages[0].content",
        "must be a string or an array of parts, not a whole number",
    ),
    ([user("a")], "messages[0].content[0]", "must be an object, not a string"),
    ([user({"text": "a"})], "messages[0].content[0].type", "is missing"),
    ([user({"type": 5})], "messages[0].content[0].type", "must be one of"),
    (
        [user(TEXT, {"type": "video"})],
        "messages[0].content[1].type",
        '"refusal", "image_url", "input_image", "file", "input_file", not "video"',
    ),
    ([user({"type": "text"})], "messages[0].content[0].text", "is missing"),
    ([user({"type": "text", "text": 5})], "messages[0].content[0].text", "must be a string"),
    ([user({"type": "input_audio"})], "messages[0].content[0]", "is audio"),
    # pictures
    ([user({"type": "image_url"})], "messages[0].content[0].image_url", "is missing"),
    (
        [user({"type": "image_url", "image_url": 5})],
        "messages[0].content[0].image_url",
        "must be a string or an object with a url, not a whole number",
    ),
    (
        [user({"type": "image_url", "image_url": {}})],
        "messages[0].content[0].image_url.url",
        "is missing",
    ),
    (
        [user({"type": "image_url", "image_url": {"url": PNG, "detail": "tiny"}})],
        "messages[0].content[0].image_url.detail",
        'must be one of "auto", "low", "high", "original", not "tiny"',
    ),
    (
        [user({"type": "input_image", "image_url": "data:image/png;base64,AAAA"})],
        "messages[0].content[0].image_url",
        "is not a image/png file",
    ),
    (
        [user({"type": "input_image", "image_url": "file:///a.png"})],
        "messages[0].content[0].image_url",
        "is neither an http(s) URL nor a data URL",
    ),
    ([{"role": "system", "content": [PICTURE]}], "messages[0].content", "send it as the user"),
    ([{"role": "assistant", "content": [PICTURE]}], "messages[0].content", "send it as the user"),
    # files
    ([user({"type": "file"})], "messages[0].content[0].file", "is missing"),
    ([user({"type": "file", "file": {}})], "messages[0].content[0].file.file_data", "is missing"),
    ([user({"type": "input_file"})], "messages[0].content[0].file_data", "is missing"),
    (
        [user({"type": "file", "file": {"file_id": "file-1"}})],
        "messages[0].content[0].file.file_id",
        "not stored here, so it cannot be read; send its text in file_data",
    ),
    (
        [user({"type": "input_file", "file_url": "https://example.org/a"})],
        "messages[0].content[0].file_url",
        "not stored here",
    ),
    (
        [user({"type": "file", "file": {"file_data": data_url(b"%PDF", "application/pdf")}})],
        "messages[0].content[0].file.file_data",
        "is of type application/pdf; only text files can be sent",
    ),
    (
        [user({"type": "file", "file": {"file_data": data_url(b"\xff\xfe")}})],
        "messages[0].content[0].file.file_data",
        "is not UTF-8 text",
    ),
    (
        [user({"type": "file", "file": {"file_data": "data:text/plain;base64,***"}})],
        "messages[0].content[0].file.file_data",
        "is not valid base64",
    ),
    # calls
    (
        [{"role": "assistant", "tool_calls": {}}],
        "messages[0].tool_calls",
        "must be an array, not an object",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
        "messages[0].tool_calls[0].function",
        "is missing",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
        "messages[0].tool_calls[0].id",
        "is missing",
    ),
    ([calls("")], "messages[0].tool_calls[0].id", "is empty"),
    ([calls("a", name="")], "messages[0].tool_calls[0].function.name", "is empty"),
    (
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}],
            }
        ],
        "messages[0].tool_calls[0].function.arguments",
        "must be a string, not an object",
    ),
    (
        [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "custom", "function": {"name": "f", "arguments": ""}}
                ],
            }
        ],
        "messages[0].tool_calls[0].type",
        'must be "function", not "custom"',
    ),
    ([USER, calls("a", "a")], "messages[1].tool_calls[1].id", "is 'a', which another call"),
    # outputs
    (
        [{"role": "tool", "content": "x"}],
        "messages[0].tool_call_id",
        "is missing; it must be the id of the call",
    ),
    (
        [USER, tool("call_x")],
        "messages[1].tool_call_id",
        "is 'call_x', the id of no call of an earlier assistant message",
    ),
    (
        [USER, tool("a"), calls("a")],
        "messages[1].tool_call_id",
        "is 'a', the id of no call of an earlier assistant message",
    ),
    (
        [USER, calls("a"), tool("a"), tool("a")],
        "messages[3].tool_call_id",
        "is 'a', the id of a call that already has an output",
    ),
    ([calls("a"), tool("a", None)], "messages[1].content", "is missing"),
    ([{"role": "function", "content": "x"}], "messages[0].name", "is missing"),
    (
        [USER, legacy("f"), {"role": "function", "name": "g", "content": "x"}],
        "messages[2].name",
        "is 'g', which no function_call of an earlier assistant message waits for",
    ),
    ([{"role": "user", "content": "", "name": 5}], "messages[0].name", "must be a string"),
]


@pytest.mark.parametrize(("messages", "param", "says"), WRONG)
def test_a_wrong_message_is_named(messages: list[object], param: str, says: str) -> None:
    with pytest.raises(ProxyError) as raised:
        turn_of(*messages)
    failure = raised.value.failure
    assert (failure.status, failure.type, failure.param) == (400, "invalid_request_error", param)
    assert says in failure.message


def test_a_million_wrong_messages_are_one_complaint() -> None:
    with pytest.raises(ProxyError) as raised:
        turn_of(*[1] * 1_000_000)
    assert raised.value.failure.param == "messages[0]"
