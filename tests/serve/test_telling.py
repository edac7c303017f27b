"""What the log and the metrics tell, and what they never do."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
import trio

from pipeline.assembly import Settings
from pipeline.errors import Failure
from pipeline.events import (
    BackendNotice,
    Failed,
    ReasoningDelta,
    ResponseEnd,
    RetryNotice,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    TurnEnd,
)
from pipeline.serve.observe import logs, metrics
from tests.serve.scripted import (
    CHAT,
    FAILS,
    USAGE,
    Script,
    ScriptedBackend,
    body,
    call,
    served,
    tools,
)

SECRET = "xyzzy-plugh-4711"  # noqa: S105
WORDS = f"say {SECRET}"
TALKATIVE: Script = (
    ReasoningDelta(f"They want {SECRET}"),
    TextDelta(f"Here is {SECRET}"),
    ToolCall("call_a", "look", msgspec.json.encode({"for": SECRET}).decode()),
    USAGE,
    TurnEnd(),
)
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": WORDS},
    {"role": "user", "content": WORDS},
    {
        "role": "assistant",
        "content": WORDS,
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": SECRET}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": WORDS},
    {"role": "user", "content": WORDS},
]
WRONG: list[dict[str, Any]] = [
    {"messages": [{"role": SECRET, "content": "x"}]},
    {"messages": [{"role": "tool", "tool_call_id": SECRET, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
    {"tool_choice": {"type": "function", "function": {"name": SECRET}}},
    {"reasoning_effort": SECRET},
]


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_one_line_with_all_that_counts(stream: bool) -> None:
    async with served(ScriptedBackend(TALKATIVE)) as here:
        await here.ask(stream=stream, tools=tools("look"), headers={"x-request-id": "r-1"})
        (told,) = await here.until_logged()
    times = {name: told[name] for name in ("duration_ms", "ttft_ms", "timestamp")}
    line = {name: value for name, value in told.items() if name not in times}
    assert 0 < times["ttft_ms"] <= times["duration_ms"] < 5_000
    assert line == {
        "event": "request",
        "level": "info",
        "request_id": "r-1",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "key": "anybody",
        "model": "gpt-5",
        "stream": stream,
        "messages": 1,
        "tools": 1,
        "n": 1,
        "output_mode": "openai-json",
        "stop_after_tools_mode": "burst",
        "finish_reason": "tool_calls",
        "has_tool_calls": True,
        "tool_call_count": 1,
        "tool_call_names": ["look"],
        "tool_call_ids": ["call_a"],
        "tool_call_truncated": False,
        "prompt_tokens": 120,
        "completion_tokens": 33,
    }


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"session_id": "s"}, {"session_id": "s"}),
        ({"session-id": "s", "thread-id": "t"}, {"session_id": "s", "conversation_id": "t"}),
        ({"x-session-id": "s"}, {"session_id": "s"}),
        ({"conversation_id": "c"}, {"conversation_id": "c"}),
        ({"Conversation-Id": "c", "thread-id": "t"}, {"conversation_id": "c"}),
        ({"x-openai-subagent": "review"}, {"subagent": "review"}),
        ({"session_id": "", "x-session-id": "s"}, {"session_id": "s"}),
        ({"session_id": "s" * 5_000}, {"session_id": "s" * 128}),
        ({"session_id": "a\tb\x85c\xa0é"}, {"session_id": "a?b?c?é"}),
        ({}, {}),
    ],
)
async def test_the_line_tells_what_a_client_says_of_itself(
    headers: dict[str, str], told: dict[str, str]
) -> None:
    raw = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    async with served() as here:
        await here.client.post(CHAT, json=body(), headers=raw)
        (line,) = await here.until_logged()
    names = ("session_id", "conversation_id", "subagent")
    assert {name: line[name] for name in names if name in line} == told


async def test_a_response_in_the_background_tells_what_its_client_said_of_itself() -> None:
    async with served() as here:
        request = {"model": "gpt-5", "input": "Hi", "background": True}
        await here.client.post("/v1/responses", json=request, headers={"session_id": "s-1"})
        lines = await here.until_logged(2)
    assert [line["session_id"] for line in lines] == ["s-1", "s-1"]
    assert sum("background" in line for line in lines) == 1


async def test_the_log_never_tells_what_was_said() -> None:
    failing: Script = (TextDelta(SECRET), *FAILS)
    quoting: Script = (Failed(Failure(f"no: {SECRET}", 400, code="x")), TurnEnd("failed"))
    scripts = [TALKATIVE, TALKATIVE, failing, failing, quoting, (ValueError("oops"),)]
    async with served(ScriptedBackend(lambda _: scripts.pop(0)), log_level="debug") as here:
        for stream in (True, False, True, False, True, True):
            await here.ask(messages=HISTORY, tools=tools("look"), stream=stream, user=SECRET)
        for fields in WRONG:
            assert (await here.ask(**fields)).status_code == 400
        await here.client.post(CHAT, content=f'{{"model": {SECRET}')
        await here.client.get(f"/v1/models?q={SECRET}")
        await here.until_logged(6 + len(WRONG) + 2)
        assert SECRET not in here.log.getvalue()
        assert "oops" in here.log.getvalue()
        wrong = [line for line in here.lines() if line.get("error_param")]
        assert wrong[0]["error_param"] == "messages[0].role"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_operator_may_ask_for_what_was_said(stream: bool) -> None:
    async with served(ScriptedBackend(TALKATIVE), log_content=True) as here:
        await here.ask(WORDS, tools=tools("look"), stream=stream)
        await here.until_logged()
        (asked,) = here.lines("request content")
        assert asked["body"]["messages"][0]["content"] == WORDS
        assert "Here is " + SECRET in "".join(map(str, here.lines("answer content")))


async def test_a_line_has_its_bounds_whatever_the_client_sends() -> None:
    async with served() as here:
        assert (await here.ask(model="m" * 100_000)).status_code == 200
        await here.client.get("/v1/models/" + "m" * 10_000)
        await here.until_logged(2)
        assert max(map(len, here.log.getvalue().splitlines())) < 2_000


async def test_remarks_of_stages_are_logged() -> None:
    undeclared = ToolCallFragment("k", "call_a", "unheard_of", whole="{}", done=True)
    script: Script = (undeclared, TurnEnd())
    async with served(ScriptedBackend(script)) as here:
        await here.ask(tools=tools("look"), headers={"x-request-id": "r-2"})
        await here.until_logged()
        (remark,) = here.lines("remark")
        assert (remark["stage"], remark["request_id"], remark["times"]) == ("calls", "r-2", 1)


@pytest.mark.parametrize(
    "event",
    [
        ToolCall("call_a", "unheard_of", SECRET),
        ToolCallFragment("k", "call_a", "unheard_of", whole=SECRET, done=True),
    ],
    ids=["whole", "in pieces"],
)
async def test_a_forwarded_call_of_an_undeclared_tool_is_logged_by_its_name(
    event: ToolCall | ToolCallFragment,
) -> None:
    async with served(ScriptedBackend((event, TurnEnd()))) as here:
        await here.ask(tools=tools("look"))
        await here.until_logged()
        (remark,) = here.lines("remark")
        assert "forwarded a call of unheard_of," in remark["remark"]
        assert SECRET not in here.log.getvalue()


async def test_a_block_of_an_undeclared_tool_that_stays_text_is_logged_by_its_name() -> None:
    block = f"<use_tool><name>unheard_of</name><for>{SECRET}</for></use_tool>"
    async with served(ScriptedBackend((TextDelta(f"{block} {block}"), TurnEnd()))) as here:
        answer = await here.ask(tools=tools("look"))
        await here.until_logged()
        (remark,) = here.lines("remark")
        assert "left a call of unheard_of as text" in remark["remark"]
        assert (remark["stage"], remark["times"]) == ("calls", 2)
        assert SECRET not in here.log.getvalue()
    assert answer.json()["choices"][0]["message"]["content"] == f"{block} {block}"


async def test_a_model_that_invents_tools_does_not_fill_the_log() -> None:
    names = [f"{number}-{'x' * 1_000}" for number in range(500)]
    text = " ".join(f"<use_tool><name>{name}</name></use_tool>" for name in names)
    async with served(ScriptedBackend((TextDelta(text), TurnEnd()))) as here:
        await here.ask(tools=tools("look"))
        await here.until_logged()
        remarks = here.lines("remark")
    assert len(remarks) <= 21
    assert sum(line["times"] for line in remarks) == 500
    assert max(len(line["remark"]) for line in remarks) < 200


async def test_a_log_for_people_can_be_read_by_people() -> None:
    out = io.StringIO()
    async with served() as here:
        logs.configure(Settings(log_format="pretty"), out)
        await here.ask()
        await here.until(out.getvalue)
    (line,) = out.getvalue().splitlines()
    assert "request" in line
    assert "status=200" in line
    assert not line.startswith("{")


# -- the metrics -----------------------------------------------------------------------------------


async def test_every_family_is_exposed_and_moves() -> None:
    rest = trio.Event()
    noisy: Script = (
        BackendNotice("mcp", "starting"),
        TextDelta("a"),
        RetryNotice(),
        TextDelta("ab"),
        call("a"),
        call("b", 1),
        USAGE,
        ResponseEnd(),
    )
    scripts = [noisy, noisy, (TextDelta("a"), *FAILS), (TextDelta("a"), rest, TurnEnd())]
    backend = ScriptedBackend(lambda _: scripts.pop(0))
    backend.tally |= {"sent turn/start": 3, "got turn/started": 2, "error turn/start -32600": 1}
    backend.tally["restarts"] = 4
    async with served(backend, tool_block_max=1) as here:
        await here.ask(tools=tools("look"))
        await here.ask(tools=tools("look"))
        await here.ask(stream=True)
        async with here.client.stream("POST", CHAT, json=body(stream=True)):
            assert here.metric("proxy_streams_open") == 1
            assert here.metric("proxy_turns_running") == 1
            rest.set()
        await here.until_logged(4)
        told = (await here.client.get("/metrics")).text
        route = f'route="{CHAT}"'
        assert here.metric(f'proxy_requests_total{{mode="json",{route},status="200"}}') == 2
        assert here.metric('proxy_ttft_seconds_count{mode="stream"}') == 2
        assert here.metric('proxy_duration_seconds_count{mode="json"}') == 2
        assert here.metric('proxy_tool_calls_total{origin="structured"}') == 2
        assert here.metric('proxy_errors_total{code="upstream_error"}') == 1
        assert here.metric('proxy_events_total{fate="in",stage="noise"}') > 5
        assert here.metric('proxy_events_total{fate="dropped",stage="noise"}') == 2
        assert here.metric('proxy_rpc_messages_total{method="turn/start",way="sent"}') == 3
        assert here.metric('proxy_rpc_errors_total{code="-32600",method="turn/start"}') == 1
        assert here.metric('proxy_backend_total{what="restarts"}') == 4
        assert here.metric("proxy_queue_depth") == 0
        assert here.metric("proxy_streams_open") == 0
    for sample in (
        'proxy_events_dropped_total{reason="',
        "proxy_cuts_total{",
        "proxy_contract_violations_total",
        "proxy_clients_left_total",
    ):
        assert sample in told, sample


async def test_a_broken_contract_is_counted_by_its_rule() -> None:
    async with served(ScriptedBackend((TextDelta("Hi"),))) as here:  # a turn without an end
        answer = await here.ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "stream_ended_early")
        await here.until_logged()
        assert here.metric('proxy_contract_violations_total{rule="one-end"}') == 1


async def test_a_problem_of_the_backend_is_counted_by_kind_and_name() -> None:
    backend = ScriptedBackend()
    backend.tally |= {f"got method-{number}": 1_000 for number in range(500)}
    backend.tally["problem unknown_event two words"] = 1
    backend.tally["problem nameless_call function_call"] = 3
    family = "proxy_backend_problems_total"
    async with served(backend) as here:
        for _ in range(2):  # to read them changes nothing
            assert here.metric(f'{family}{{kind="unknown_event",name="two words"}}') == 1
            assert here.metric(f'{family}{{kind="nameless_call",name="function_call"}}') == 3
        assert "problem" not in here.server.metrics.exposition().decode().replace(family, "")


async def test_labels_have_no_more_values_than_we_gave_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MOST_VALUES", 9)
    codes = iter(range(1_000))

    def fails(_: object) -> Script:
        return (Failed(Failure("no", 502, code=f"c{next(codes)}")), TurnEnd("failed"))

    async with served(ScriptedBackend(fails)) as here:
        for number in range(12):
            await here.ask(model=f"model-{number}", headers={"x-request-id": f"r{number}"})
        for number in range(12):
            await here.client.get(f"/nowhere/{number}")
            await here.client.request(f"M{number}", "/v1/models")
        told = (await here.client.get("/metrics")).text
    assert told.count("proxy_errors_total{") <= 10
    assert 'proxy_errors_total{code="other"}' in told
    assert told.count("proxy_requests_total{") <= 4
    assert "model-" not in told
