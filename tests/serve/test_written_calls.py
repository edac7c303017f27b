"""Calls that a model writes into its text, on both APIs, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from pipeline.events import TextDelta, TurnEnd
from tests.serve.asking import LOOK, post, respond, text
from tests.serve.scripted import Script, ScriptedBackend, Served, served, tools
from tests.serve.wire import chunks, folded

API = pytest.mark.parametrize("api", ["chat", "responses"])
STREAM = pytest.mark.parametrize("stream", [True, False])
BLOCK = "<use_tool>\n<name>look</name>\n<at>sky</at>\n</use_tool>"


@frozen
class Got:
    """What a client reads of an answer, whatever the API."""

    text: str
    calls: list[tuple[str, str]]
    ids: list[str]
    finish: str | None


def says(*pieces: str) -> ScriptedBackend:
    script: Script = (*(TextDelta(piece, item_id="m") for piece in pieces), TurnEnd())
    return ScriptedBackend(script)


async def ask(here: Served, api: str, *, stream: bool, **more: Any) -> Got:
    if api == "responses":
        response = await respond(here, stream=stream, **more)
        items = [item for item in response["output"] if item["type"] == "function_call"]
        return Got(
            text(response),
            [(item["name"], item["arguments"]) for item in items],
            [item["call_id"] for item in items],
            None,
        )
    answer = await here.ask(stream=stream, **more)
    assert answer.status_code == 200, answer.text
    if stream:
        message = folded(chunks(answer.text))[0]
        finish = message["finish_reason"]
    else:
        (choice,) = answer.json()["choices"]
        message, finish = choice["message"], choice["finish_reason"]
    called = message.get("tool_calls", [])
    return Got(
        message["content"] or "",
        [(one["function"]["name"], one["function"]["arguments"]) for one in called],
        [one["id"] for one in called],
        finish,
    )


# -- ids -----------------------------------------------------------------------------------------


@API
@STREAM
async def test_ids_differ_between_turns_though_the_client_names_its_requests_alike(
    api: str, stream: bool
) -> None:
    declared = [LOOK] if api == "responses" else tools("look")
    async with served(says(BLOCK, BLOCK)) as here:
        got = [
            await ask(here, api, stream=stream, tools=declared, headers={"x-request-id": "r-1"})
            for _ in range(3)
        ]
    ids = [one for answer in got for one in answer.ids]
    assert len(ids) == len(set(ids)) == 6


@STREAM
async def test_ids_differ_between_the_choices_of_one_answer(stream: bool) -> None:
    async with served(says(BLOCK)) as here:
        answer = await here.ask(n=3, stream=stream, tools=tools("look"))
    messages = (
        list(folded(chunks(answer.text)).values())
        if stream
        else [choice["message"] for choice in answer.json()["choices"]]
    )
    assert len({message["tool_calls"][0]["id"] for message in messages}) == 3


@API
@STREAM
async def test_the_id_that_the_model_wrote_reaches_the_client(api: str, stream: bool) -> None:
    declared = [LOOK] if api == "responses" else tools("look")
    block = '<tool_call>{"id": "call_own", "name": "look", "arguments": {}}</tool_call>'
    async with served(says(block)) as here:
        assert (await ask(here, api, stream=stream, tools=declared)).ids == ["call_own"]


async def test_an_id_of_the_conversation_is_not_given_again() -> None:
    block = '<tool_call>{"id": "call_own", "name": "look", "arguments": {}}</tool_call>'
    function = {"name": "look", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_own", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_own", "content": "rain"},
    ]
    async with served(says(block)) as here:
        got = await ask(here, "chat", stream=False, tools=tools("look"), messages=messages)
    assert len(got.ids) == 1
    assert got.ids != ["call_own"]


# -- obsidian-xml without tools ------------------------------------------------------------------

WRITE = "<use_tool>\n<name>writeToFile</name>\n<path>a.md</path>\n</use_tool>"
XML = {"x-proxy-output-mode": "obsidian-xml"}
SAID = ("Looking", f". {BLOCK[:5]}", f"{BLOCK[5:]}\nthen\n{WRITE}", " I will wait", ".")


@API
@STREAM
@pytest.mark.parametrize("asked", ["header", "setting", "setting of the API"])
async def test_obsidian_xml_without_tools_gives_calls_and_their_blocks_and_drops_the_tail(
    api: str, stream: bool, asked: str
) -> None:
    own = "output_mode" if api == "chat" else "responses_output_mode"
    flags = {"header": {}, "setting": {"output_mode": "obsidian-xml"}}.get(
        asked, {own: "obsidian-xml"}
    )
    async with served(says(*SAID), tool_block_delimiter="\n--\n", **flags) as here:
        headers = XML if asked == "header" else None
        got = await ask(here, api, stream=stream, headers=headers)
    assert got.calls == [("look", '{"at":"sky"}'), ("writeToFile", '{"path":"a.md"}')]
    assert got.text == f"Looking. {BLOCK}\nthen\n\n--\n{WRITE}"
    assert got.finish == ("tool_calls" if api == "chat" else None)


@API
@STREAM
@pytest.mark.parametrize(
    ("headers", "flags"),
    [
        (None, {}),
        ({"x-proxy-output-mode": "auto"}, {"output_mode": "obsidian-xml"}),
        ({"x-proxy-output-mode": "openai-json"}, {}),
    ],
)
async def test_no_other_mode_touches_the_text_of_a_request_without_tools(
    api: str, stream: bool, headers: dict[str, str] | None, flags: dict[str, str]
) -> None:
    async with served(says(*SAID), **flags) as here:
        got = await ask(here, api, stream=stream, headers=headers)
    assert (got.text, got.calls) == ("".join(SAID), [])
    assert got.finish == ("stop" if api == "chat" else None)


@API
@STREAM
async def test_a_block_in_a_code_fence_is_an_example_where_no_tools_are_declared(
    api: str, stream: bool
) -> None:
    example = f"Write:\n```xml\n{BLOCK}\n```\n"
    async with served(says(example, WRITE)) as here:
        got = await ask(here, api, stream=stream, headers=XML)
    assert got.calls == [("writeToFile", '{"path":"a.md"}')]
    assert got.text == f"{example}{WRITE}"


@API
@STREAM
async def test_a_fence_around_a_sentinel_is_not_in_the_answer(api: str, stream: bool) -> None:
    declared = [LOOK] if api == "responses" else tools("look")
    pieces = ("Sure:\n", "``", "`json\n<tool", '_call>{"name": "look"}</tool_call>\n``', "`")
    async with served(says(*pieces)) as here:
        got = await ask(here, api, stream=stream, tools=declared)
    assert (got.text, got.calls) == ("Sure:\n", [("look", "{}")])


@API
async def test_an_operator_who_fails_unknown_tools_fails_them_in_obsidian_xml_too(api: str) -> None:
    async with served(says(BLOCK), unknown_tool_policy="fail") as here:
        answer = await (here.ask(headers=XML) if api == "chat" else post(here, headers=XML))
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] in {"unknown_tool", "server_error"}
