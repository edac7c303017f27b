"""A schema for the answer: what is rejected, what Codex gets, and what the model rejects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from pipeline.errors import ProxyError
from pipeline.loose_json import Json
from pipeline.requests.chat import ChatRequest
from pipeline.requests.responses import ResponsesRequest
from pipeline.turn import OutputSchema, Tool, Turn
from sources.app_server.protocol.capabilities import Capabilities
from sources.app_server.protocol.prompts import FORM_RULE
from sources.app_server.protocol.thread import ThreadPlan
from sources.demo.script import answer
from tests.support.output_schemas import CLOSED, OPEN

WITHIN: dict[str, Any] = {**CLOSED, "$defs": {"Step": {**CLOSED, "required": ["word"]}}}

LONG = "x" * 1000

# -- what is asked for -----------------------------------------------------------------------------


def chat(**form: Any) -> Turn:
    wanted = {"type": "json_schema", "json_schema": {"name": "A", **form}}
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "gpt-5", "messages": messages, "response_format": wanted}
    return ChatRequest.from_json(body).turn()


def responses(**form: Any) -> Turn:
    wanted = {"type": "json_schema", "name": "A", **form}
    body = {"model": "gpt-5", "input": "Hi", "text": {"format": wanted}}
    return ResponsesRequest.from_json(body).turn()


APIS = {"response_format.json_schema": chat, "text.format": responses}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (OPEN, "at the root, additionalProperties must be false;"),
        (WITHIN, "at $defs.Step, required must list every property, but 'apt' is missing;"),
        ({}, 'at the root, the type must be "object";'),
        ({**CLOSED, "properties": {LONG: {}}}, "but 'xxxxxxxx"),
        ({**CLOSED, "properties": {LONG: OPEN}, "required": [LONG]}, "at properties.xxxxxxxx"),
    ],
)
def test_a_schema_that_cannot_be_strict_but_must_is_refused_with_the_place(
    api: str, schema: Json, words: str
) -> None:
    with pytest.raises(ProxyError) as raised:
        APIS[api](schema=schema, strict=True)
    failure = raised.value.failure
    assert (failure.status, failure.type) == (400, "invalid_request_error")
    assert (failure.code, failure.param) == ("invalid_json_schema", f"{api}.schema")
    assert failure.message.startswith(f"{api}.schema cannot be strict: ")
    assert words in failure.message
    assert "send strict: false" in failure.message
    assert len(failure.message) < 500


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("strict", [True, False, None])
def test_a_closed_schema_may_be_strict_or_not(api: str, strict: bool | None) -> None:
    assert APIS[api](schema=CLOSED, strict=strict).output_schema == OutputSchema(
        CLOSED, "A", strict=strict
    )


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("wish", [{"strict": False}, {"strict": None}, {}], ids=str)
def test_an_open_schema_is_accepted_if_it_is_not_strict(api: str, wish: dict[str, Any]) -> None:
    taken = APIS[api](schema=OPEN, description="An A.", **wish).output_schema
    assert taken == OutputSchema(OPEN, "A", "An A.", wish.get("strict"))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("field", "wrong"), [("strict", "yes"), ("description", 5), ("name", {})])
def test_a_field_of_the_format_that_is_wrong_is_named(api: str, field: str, wrong: object) -> None:
    with pytest.raises(ProxyError) as raised:
        APIS[api](**{"schema": CLOSED, field: wrong})
    assert (raised.value.failure.status, raised.value.failure.param) == (400, f"{api}.{field}")


# -- what Codex is told ----------------------------------------------------------------------------


def told(form: OutputSchema | None, **fields: Any) -> tuple[str | None, Json | None]:
    """The instructions and the schema that a thread is given."""
    turn = evolve(Turn(output_schema=form), **fields)
    plan = ThreadPlan(turn, Capabilities(dynamic_tools=True), "/nowhere")
    thread, start = plan.thread_start(), plan.turn_start("t")
    return thread.get("developerInstructions"), start.get("outputSchema")


@pytest.mark.parametrize("strict", [True, False, None])
def test_codex_gets_a_closed_schema_as_the_schema(strict: bool | None) -> None:
    assert told(OutputSchema(CLOSED, "A", strict=strict)) == (None, CLOSED)
    assert told(None) == (None, None)


@pytest.mark.parametrize("strict", [False, None])
def test_codex_gets_an_open_schema_as_an_instruction_after_all_others(strict: bool | None) -> None:
    form = OutputSchema(OPEN, "A", "An A.", strict)
    instructions, schema = told(
        form, instructions="Be brief.", tools=(Tool("f"),), tool_choice="required"
    )
    assert schema is None
    assert instructions is not None
    assert instructions.startswith("Be brief.\n\nYou must call")
    *_, about, rule, text = instructions.splitlines()
    assert (about, rule) == ("What your final answer is: An A.", FORM_RULE)
    assert json.loads(text) == OPEN
    assert [*json.loads(text)["properties"]] == ["word", "apt"]  # models write in this order


def test_the_description_of_a_closed_schema_is_an_instruction() -> None:
    form = OutputSchema(CLOSED, "A", "An A.")
    assert told(form) == ("What your final answer is: An A.", CLOSED)


def test_the_same_schema_is_always_the_same_instruction() -> None:
    again: dict[str, Any] = json.loads(json.dumps(OPEN))
    assert told(OutputSchema(OPEN)) == told(OutputSchema(again))


# -- what the scripted model refuses, as OpenAI does -----------------------------------------------


NOT_CLOSED = "'additionalProperties' is required to be supplied and to be false"


def asked(schema: Json, strict: object) -> Json:
    form = {"type": "json_schema", "name": "A", "schema": schema, "strict": strict}
    return {"input": [{"role": "user", "content": "TEXT"}], "text": {"format": form}}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (OPEN, f"In context=(), {NOT_CLOSED}."),
        (
            {**CLOSED, "$defs": {"B": OPEN}},
            f"In context=('$defs', 'B'), {NOT_CLOSED}.",
        ),
        (
            WITHIN,
            (
                "In context=('$defs', 'Step'), required must list every property, "
                "but 'apt' is missing."
            ),
        ),
    ],
)
def test_the_scripted_model_refuses_a_strict_schema_that_is_open(
    schema: Json, problem: str
) -> None:
    says = answer(asked(schema, strict=True))
    assert says.status == 400
    assert says.body == {
        "error": {
            "message": f"Invalid schema for response_format 'A': {problem}",
            "type": "invalid_request_error",
            "param": "text.format.schema",
            "code": "invalid_json_schema",
        }
    }


@pytest.mark.parametrize(
    ("schema", "strict"), [(CLOSED, True), (CLOSED, False), (OPEN, False), (OPEN, None)]
)
def test_the_scripted_model_takes_every_other_schema(schema: Json, strict: object) -> None:
    assert answer(asked(schema, strict)).status == 200


@pytest.mark.parametrize("more", ["", "\n\nBe brief."])
def test_the_scripted_model_follows_a_schema_in_its_instructions(more: str) -> None:
    text = f"Be kind.\n\n{FORM_RULE}\n{json.dumps(OPEN)}{more}"
    rule = {"role": "developer", "content": [{"type": "input_text", "text": text}]}
    user = {"role": "user", "content": [{"type": "input_text", "text": "Which word?"}]}
    (item,) = answer({"input": [rule, user]}).items
    assert json.loads(item["text"]) == {"word": "some word", "apt": True}
