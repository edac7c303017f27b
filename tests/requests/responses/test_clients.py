"""Responses requests as real clients write them are taken as they are meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

from pipeline.loose_json import Json
from pipeline.requests.responses import CompactRequest, ResponsesRequest
from pipeline.turn import Turn

CAUGHT = Path(__file__).parents[2] / "data" / "responses"
"""Bodies that were caught on their way, less long texts."""
CODEX_TOOLS = [
    "exec_command",
    "write_stdin",
    "request_user_input",
    "view_image",
    "multi_agent_v1__close_agent",
    "multi_agent_v1__resume_agent",
    "multi_agent_v1__send_input",
    "multi_agent_v1__spawn_agent",
    "multi_agent_v1__wait_agent",
    "get_goal",
    "create_goal",
    "update_goal",
]


def body(name: str) -> Any:
    return json.loads((CAUGHT / f"{name}.json").read_text())


def taken(name: str) -> ResponsesRequest:
    return ResponsesRequest.from_json(body(name))


def kinds(turn: Turn) -> list[str]:
    return [item.get("role") or item["type"] for item in turn.items]


# -- codex -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.166.0", "0.154.0"])
def test_codex_gets_its_tools_its_history_and_its_reasoning_through(version: str) -> None:
    request = taken(f"codex-{version}-tools")
    turn = request.turn()
    assert request.ignored == ("tools[8].web_search",)
    assert not request.store
    assert request.wants_sealed_reasoning
    assert [tool.name for tool in turn.tools] == CODEX_TOOLS
    burst = ["function_call"] * 2 + ["function_call_output"] * 2
    assert kinds(turn) == ["user", "user", "reasoning", "assistant", *burst]
    assert turn.items[2]["encrypted_content"] == "sealed-thought"
    assert turn.items[3]["phase"] == "commentary"
    assert turn.instructions.startswith("You are a coding agent running in the Codex CLI")
    assert "<permissions instructions>" in turn.instructions
    assert (turn.summary, turn.effort, turn.parallel_tool_calls) == ("auto", None, True)


def test_codexs_default_model_has_its_tools_in_the_input() -> None:
    request = taken("codex-0.166.0-default-model")
    turn = request.turn()
    assert request.ignored == ()
    assert [(tool.namespace, tool.own_name, tool.kind) for tool in turn.tools[:2]] == [
        ("functions", "exec", "custom"),
        ("functions", "wait", "function"),
    ]
    assert "PRAGMA_LINE" in turn.tools[0].description
    assert {tool.namespace for tool in turn.tools} == {"functions", "clock", "collaboration"}
    assert kinds(turn) == ["user", "user", "function_call", "function_call_output"]
    assert turn.items[2]["name"] == "functions__exec"
    assert turn.items[2]["arguments"] == '{"input":"text(\\"hi\\")"}'
    assert (turn.effort, turn.verbosity, turn.parallel_tool_calls) == ("low", "low", False)


def test_codex_asks_to_be_shortened_and_sends_what_it_got() -> None:
    asked = taken("codex-0.166.0-compaction-trigger")
    assert asked.wants_compaction
    assert kinds(asked.turn()) == ["user", "user", "function_call", "function_call_output"]
    after = taken("codex-0.166.0-after-compaction")
    assert after.compactions == ("sealed",)
    summary: Json = {"role": "user", "content": "All was well."}
    assert kinds(after.opened({"sealed": [summary]}).turn()) == ["user", "user", "user"]


def test_older_codex_asks_at_an_address_of_its_own() -> None:
    request = CompactRequest.from_json(body("codex-0.154.0-compact"))
    assert request.ignored == ("tools[8].web_search",)
    turn = request.turn()
    assert kinds(turn) == ["user", "user", "function_call", "function_call_output"]
    assert turn.instructions.startswith("You are a coding agent")


def test_codex_sends_pictures_and_the_form_of_the_answer() -> None:
    turn = taken("codex-0.166.0-image-and-schema").turn()
    parts = [part["type"] for part in turn.items[-1]["content"]]
    assert parts == ["input_text", "input_image", "input_text", "input_text"]
    assert turn.output_schema is not None
    assert turn.output_schema.schema["required"] == ["word"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CAUGHT.glob("codex*.json")))
def test_codex_that_searches_nothing_passes_the_strictest_server(name: str) -> None:
    caught = body(name)
    tools = [tool for tool in caught.pop("tools", []) if tool["type"] != "web_search"]
    request = ResponsesRequest.from_json({**caught, "tools": tools})
    assert (request.ignored, request.strict_tools) == ((), ())


# -- AI SDK ----------------------------------------------------------------------------------------


def test_the_ai_sdk_refers_to_what_is_stored() -> None:
    request = taken("ai-sdk-item-reference")
    assert request.ignored == ("max_output_tokens",)
    assert request.references == ("rs_1",)
    sealed: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    turn = request.resolved({"rs_1": sealed}).turn()
    assert kinds(turn) == ["user", "reasoning", "function_call", "function_call_output"]
    assert turn.instructions == "Be brief."


def test_the_ai_sdk_sends_everything_where_nothing_is_stored() -> None:
    turn = taken("ai-sdk-not-stored").turn()
    assert kinds(turn) == ["user", "reasoning", "function_call", "function_call_output"]
    assert (turn.effort, turn.summary, turn.verbosity) == ("low", "auto", "low")
    assert turn.one_call_only


def test_the_ai_sdk_asks_for_a_form() -> None:
    request = taken("ai-sdk-schema")
    turn = request.turn()
    assert request.ignored == ()
    assert (turn.tool_choice, turn.offered) == ("none", ())
    assert turn.output_schema is not None


# -- what the Python clients send, caught on its way -----------------------------------------------


class Answer(pydantic.BaseModel):
    """A small structured output."""

    city: str
    degrees: float | None


def caught(call: Callable[[Any], object]) -> Any:
    """The body that a client makes of a call."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "enough seen"}})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        pytest.raises(openai.BadRequestError),
    ):
        call(http)
    (only,) = bodies
    return only


def sdk(http: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url="http://localhost/v1", http_client=http)


def langchain(http: Any, **more: Any) -> Any:
    return ChatOpenAI(
        model="gpt-5",
        api_key=pydantic.SecretStr("none"),
        base_url="http://localhost/v1",
        http_client=http,
        max_retries=0,
        use_responses_api=True,
        **more,
    )


WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
NESTED: Any = {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}


def test_the_sdk_parses_a_model() -> None:
    sent = caught(
        lambda http: sdk(http).responses.parse(
            model="gpt-5", input="Weather?", text_format=Answer, tools=[WEATHER], store=False
        )
    )
    request = ResponsesRequest.from_json(sent)
    assert request.ignored == ()
    turn = request.turn()
    assert turn.output_schema is not None
    assert set(turn.output_schema.schema["properties"]) == {"city", "degrees"}
    assert [tool.strict for tool in turn.tools] == [True]


def test_the_sdk_streams() -> None:
    def stream(http: Any) -> None:
        with sdk(http).responses.stream(model="gpt-5", input=[{"role": "user", "content": "Hi"}]):
            raise AssertionError("the server refused")

    assert ResponsesRequest.from_json(caught(stream)).turn().stream


def test_the_sdk_compacts() -> None:
    sent = caught(lambda http: sdk(http).responses.compact(model="gpt-5", input="Hello."))
    assert CompactRequest.from_json(sent).ignored == ()


def test_the_sdk_sends_back_the_items_that_it_got() -> None:
    output = [
        ResponseReasoningItem(id="rs_1", type="reasoning", summary=[], encrypted_content="sealed"),
        ResponseFunctionToolCall(
            id="fc_1", call_id="call_a", type="function_call", name="weather", arguments="{}"
        ),
    ]
    items: Any = [{"role": "user", "content": "Weather?"}, *output]
    items += [{"type": "function_call_output", "call_id": "call_a", "output": "rain"}]
    sent = caught(lambda http: sdk(http).responses.create(model="gpt-5", input=items))
    turn = ResponsesRequest.from_json(sent).turn()
    assert kinds(turn) == ["user", "reasoning", "function_call", "function_call_output"]


LOOP: Any = [
    SystemMessage("Be brief."),
    HumanMessage([{"type": "text", "text": "How is it in Bern?"}]),
    AIMessage(
        content=[
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
            {"type": "text", "text": "Wait."},
        ],
        tool_calls=[{"name": "weather", "args": {"city": "Bern"}, "id": "call_a"}],
        response_metadata={"model_provider": "openai"},
    ),
    ToolMessage("rain", tool_call_id="call_a"),
]


def test_langchain_loops_over_tools() -> None:
    sent = caught(lambda http: langchain(http).bind_tools([NESTED]).invoke(LOOP))
    turn = ResponsesRequest.from_json(sent).turn()
    assert [tool.name for tool in turn.tools] == ["weather"]
    assert turn.instructions == "Be brief."
    assert sorted(kinds(turn)) == sorted(
        ["user", "reasoning", "assistant", "function_call", "function_call_output"]
    )


def test_langchain_asks_for_a_form() -> None:
    sent = caught(lambda http: langchain(http).with_structured_output(Answer).invoke("Weather?"))
    form = ResponsesRequest.from_json(sent).turn().output_schema
    assert form is not None
    schema = form.schema
    assert schema["required"] == list(schema["properties"]) == ["city", "degrees"]
