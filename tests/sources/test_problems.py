"""What a backend sends and cannot be used: what is counted, what is logged, what is no problem."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipeline.assembly import Settings, recipe
from pipeline.loose_json import as_json
from pipeline.serve.backends import ResponsesBackend
from sinks.collect import Collect
from sources.app_server.process.supervisor import AppServer
from sources.app_server.protocol.capabilities import probe
from sources.app_server.protocol.client import DECLINED
from sources.app_server.protocol.rpc import INVALID_REQUEST, OVERLOADED, RpcCore, RpcError
from sources.app_server.transport.transport import Transport
from sources.decode import v2
from sources.decode.turn_decoder import TurnDecoder
from sources.problems import (
    INTERVAL,
    KINDS,
    LONGEST_NAME,
    MOST_NAMES,
    MOST_REFUSALS,
    Kind,
    Problems,
)
from sources.responses_api import ResponsesApiSource, open_client
from sources.responses_request import ResponsesApi
from tests.support.app_server_wire import connected
from tests.support.raw_http import COMPLETED, KEY, TURN, backend, http, says, sse

TRANSCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "transcripts").rglob("*.jsonl"))
SECRET = "xyzzy-plugh-4711"  # noqa: S105
THREAD = {"threadId": "T", "turnId": "0"}


class Clock:
    """A time that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Reported(list[tuple[Kind, str]]):
    """Every problem that was reported, in order."""

    def report(self, kind: Kind, name: str) -> None:
        self.append((kind, name))


def method(name: str, **params: Any) -> dict[str, Any]:
    return {"method": name, "params": {**THREAD, **params}}


def raw(**item: Any) -> dict[str, Any]:
    return method("rawResponseItem/completed", item=item)


def done(**item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


# -- what is a problem -----------------------------------------------------------------------------

STARTED = {"method": "turn/started", "params": {"threadId": "T", "turn": {"id": "0"}}}
CALL = {"type": "function_call", "call_id": "c", "name": "f"}


@pytest.mark.parametrize(
    ("message", "kind", "name"),
    [
        (method("thread/danced"), "unknown_event", "thread/danced"),
        ({"method": "codex/event/danced"}, "unknown_event", "codex/event/danced"),
        ({"type": "response.danced"}, "unknown_event", "response.danced"),
        ({"id": "1", "msg": {"type": "danced"}}, "unknown_event", "danced"),
        ([], "unreadable_item", "message"),
        ("text", "unreadable_item", "message"),
        ({}, "unreadable_item", "message"),
        (method(v2.TEXT_DELTA, delta=7), "unreadable_item", "text"),
        (method("item/reasoning/textDelta", delta=None), "unreadable_item", "reasoning"),
        ({"type": "response.output_text.delta", "delta": {}}, "unreadable_item", "text"),
        (method("item/completed", item={"type": "dance"}), "unreadable_item", "dance"),
        (method("item/completed", item={"type": ["a"]}), "unreadable_item", ""),
        (raw(type="dance"), "unreadable_item", "dance"),
        (done(type="dance"), "unreadable_item", "dance"),
        (raw(type="function_call", call_id="c", arguments="{}"), "nameless_call", "function_call"),
        (raw(type="function_call", name="f", arguments="{}"), "nameless_call", "function_call"),
        (method("item/tool/call", callId="c", arguments={}), "nameless_call", "function_call"),
        (raw(**CALL, arguments=5), "unreadable_call", "function_call"),
        (done(**CALL, arguments=True), "unreadable_call", "function_call"),
        (done(type="custom_tool_call", name="f"), "unreadable_call", "custom_tool_call"),
        (
            {"type": "response.function_call_arguments.delta", "delta": 5},
            "unreadable_call",
            "response.function_call_arguments.delta",
        ),
        (
            {"type": "response.function_call_arguments.done", "arguments": 5},
            "unreadable_call",
            "response.function_call_arguments.done",
        ),
    ],
)
def test_what_cannot_be_used_is_reported_once_by_kind_and_name(
    message: object, kind: Kind, name: str
) -> None:
    reported = Reported()
    decoder = TurnDecoder(report=reported.report)
    if "threadId" in as_json(as_json(message).get("params")):
        decoder.feed(STARTED)
    decoder.feed(message)
    assert reported == [(kind, name)]


def test_a_line_that_is_not_json_is_reported() -> None:
    reported = Reported()
    decoder = TurnDecoder(report=reported.report)
    decoder.unreadable("a line that is not JSON")
    assert reported == [("unreadable_item", "line")]


@pytest.mark.parametrize(
    "message",
    [
        *[method(name) for name in sorted(v2.NOISE)],
        *[method(name) for name in DECLINED],
        method("thread/goal/updated"),
        method("item/completed", item={"type": "webSearch"}),
        method("item/completed", item={"type": "userMessage"}),
        method("item/started", item={"type": "commandExecution"}),
        raw(type="custom_tool_call", name="apply_patch", input="x"),
        raw(type="web_search_call"),
        raw(type="message", role="user", content=[]),
        raw(**CALL, arguments=None),
        raw(**CALL),
        method("codex/event/exec_command_begin", msg={"type": "exec_command_begin"}),
        {"id": "1", "msg": {"type": "web_search_begin"}},
        {"type": "response.web_search_call.searching"},
        {"type": "response.output_text.annotation.added"},
        {"type": "keepalive"},
        {"id": 5, "result": {}},
    ],
    ids=lambda message: json.dumps(message)[:70],
)
def test_known_noise_is_no_problem(message: object) -> None:
    reported = Reported()
    decoder = TurnDecoder(report=reported.report)
    decoder.feed(STARTED)
    decoder.feed(message)
    decoder.feed(method(v2.TEXT_DELTA, delta="of another turn", turnId="7"))
    assert reported == []


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_recorded_turn_has_a_problem(path: Path) -> None:
    reported = Reported()
    decoder = TurnDecoder(report=reported.report)
    for line in path.read_text("utf-8").splitlines():
        decoder.feed(json.loads(line))
    assert reported == []


# -- how they are counted and logged ---------------------------------------------------------------


def test_there_is_one_fixed_set_of_kinds() -> None:
    assert get_args(Kind) == KINDS
    assert {*KINDS} == {
        "unknown_event",
        "unreadable_item",
        "unreadable_call",
        "nameless_call",
        "missing_response_end",
    }


def test_a_hostile_backend_fills_neither_the_counters_nor_a_name() -> None:
    problems = Problems(now=Clock())
    for number in range(10_000):
        for kind in KINDS:
            problems.report(kind, f"{number}\n\ud800{'x' * 1_000}")
    assert sum(problems.counters.values()) == 10_000 * len(KINDS)
    assert len(problems.counters) == (MOST_NAMES + 1) * len(KINDS)
    for name in problems.counters:
        assert len(name) <= LONGEST_NAME + 40
        assert name.isprintable()
        name.encode()


def test_a_kind_is_logged_once_a_minute_with_how_many_there_were_since() -> None:
    clock = Clock()
    problems = Problems(backend="codex", now=clock)
    with capture_logs() as logs:
        for second in range(121):
            clock.now = float(second)
            problems.report("unknown_event", f"e{second}")
        problems.report("unreadable_item", "line")
    told = [(line["kind"], line["times"], line["name"]) for line in logs]
    assert told == [
        ("unknown_event", 1, "e0"),
        ("unknown_event", 60, "other"),
        ("unknown_event", 60, "other"),
        ("unreadable_item", 1, "line"),
    ]
    assert {(line["log_level"], line["backend"]) for line in logs} == {("warning", "codex")}


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.text(max_size=3), st.floats(0, 50))),
)
def test_every_problem_is_counted_once_and_logged_once(
    reported: list[tuple[Kind, str, float]],
) -> None:
    clock = Clock()
    problems = Problems(now=clock)
    last: dict[str, float] = {}
    with capture_logs() as logs:
        for kind, name, pause in reported:
            clock.now += pause
            lines = len(logs)
            problems.report(kind, name)
            if len(logs) > lines:
                assert clock.now >= last.get(kind, -INTERVAL) + INTERVAL
                last[kind] = clock.now
        problems.close()
    counted, told = Counter[str](), Counter[str]()
    for counter, number in problems.counters.items():
        counted[counter.split(" ")[1]] += number
    for line in logs:
        told[line["kind"]] += line["times"]
    assert counted == told == Counter(kind for kind, _, _ in reported)


def test_what_was_not_logged_yet_is_logged_at_the_end() -> None:
    problems = Problems(now=Clock())
    for _ in range(3):
        problems.report("unknown_event", "a")
        problems.refused("turn/start", "-32600")
    with capture_logs() as logs:
        problems.close()
        problems.close()
    assert [(line.get("kind"), line.get("method"), line["times"]) for line in logs] == [
        ("unknown_event", None, 2),
        (None, "turn/start", 2),
    ]


# -- on an app-server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name"), [(b"{", "line"), (b"\xff", "line"), (b"[]", "message"), (b"{}", "message")]
)
def test_a_line_of_an_app_server_that_is_no_message_is_reported(line: bytes, name: str) -> None:
    problems = Problems(now=Clock())
    assert RpcCore(problems.counters, problems.report).read(line) is None
    assert problems.counters[f"problem unreadable_item {name}"] == 1


async def test_a_message_without_a_receiver_is_a_problem_only_if_its_method_is_unknown() -> None:
    async with connected() as (wire, client):
        wire.say(
            {"method": "thread/danced", "params": {}},
            {"method": "something/asked", "id": 3, "params": {}},
            method("turn/completed"),
            {"method": "account/updated", "params": {}},
            {"method": "execCommandApproval", "id": 4, "params": {}},
        )
        await trio.testing.wait_all_tasks_blocked()
        problems = {name for name in client.counters if name.startswith("problem")}
    assert problems == {
        "problem unknown_event thread/danced",
        "problem unknown_event something/asked",
    }


def refusing(code: object) -> Any:
    def refuse(asked: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": asked["id"], "error": {"code": code, "message": SECRET, "data": SECRET}}]

    return refuse


async def test_an_error_answer_is_logged_by_method_and_code_once_a_minute_and_without_its_words(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client):
        wire.on_send = refusing(INVALID_REQUEST)
        with capture_logs() as logs:
            for name in ("turn/start", "turn/start", "thread/delete"):
                with pytest.raises(RpcError):
                    await client.request(name, {"input": SECRET})
            await trio.sleep(INTERVAL)
            with pytest.raises(RpcError):
                await client.request("turn/start", {})
    told = [(line["log_level"], line["method"], line["code"], line["times"]) for line in logs]
    assert told == [
        ("warning", "turn/start", "-32600", 1),
        ("warning", "thread/delete", "-32600", 1),
        ("warning", "turn/start", "-32600", 2),
    ]
    assert SECRET not in str(logs)
    assert client.counters["error turn/start -32600"] == 3


@pytest.mark.parametrize("code", [SECRET, None, {"a": SECRET}, [SECRET]])
async def test_a_code_that_is_no_number_is_not_repeated(code: object) -> None:
    async with connected() as (wire, client):
        wire.on_send = refusing(code)
        with capture_logs() as logs, pytest.raises(RpcError):
            await client.request("turn/start", {})
    assert [line["code"] for line in logs] == ["none"]
    assert client.counters["error turn/start none"] == 1


async def test_an_overloaded_backend_is_logged_though_it_is_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client):
        wire.on_send = refusing(OVERLOADED)
        with capture_logs() as logs, pytest.raises(RpcError):
            await client.request("turn/start", {})
    assert [(line["code"], line["times"]) for line in logs] == [("-32001", 1)]


def test_a_backend_that_invents_codes_does_not_fill_the_log() -> None:
    problems = Problems(now=Clock())
    with capture_logs() as logs:
        for number in range(10_000):
            problems.refused("turn/start", str(number))
    assert len(logs) == MOST_REFUSALS + 1


async def test_the_refusals_that_a_start_asks_for_are_not_logged() -> None:
    async with connected() as (wire, client):
        wire.on_send = refusing(INVALID_REQUEST)
        with capture_logs() as logs:
            await probe(client)
    assert logs == []
    assert client.counters["error thread/start -32600"] == 2


async def test_the_problems_of_all_connections_of_an_app_server_are_counted_together() -> None:
    server = AppServer("x", None, ".")  # type: ignore[arg-type]  # never started
    server.problems.report("missing_response_end", "turn/completed")
    assert server.counters == {"problem missing_response_end turn/completed": 1}


async def test_an_app_server_that_is_no_longer_used_logs_the_last_problems(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def connect(nursery: trio.Nursery) -> Transport:
        return await trio.sleep_forever()

    server = AppServer("x", connect, ".")
    with capture_logs() as logs, trio.move_on_after(1.0):
        for _ in range(3):
            server.problems.report("unknown_event", "a")
        await server.run()
    told = [(line["kind"], line["times"]) for line in logs if "kind" in line]
    assert told == [("unknown_event", 1), ("unknown_event", 2)]


async def test_an_api_that_is_no_longer_used_logs_the_last_problems() -> None:
    body = b"data: {\n\n" * 3
    async with backend(says(http(body + COMPLETED))) as url, open_client() as client:
        api = ResponsesBackend(ResponsesApi(url), client, Settings())
        with capture_logs() as logs:
            await recipe(Settings()).run(api.source, Collect(), TURN)
            api.close()
    assert [(line["kind"], line["times"]) for line in logs] == [
        ("unreadable_item", 1),
        ("unreadable_item", 2),
    ]


# -- on an API over HTTP ---------------------------------------------------------------------------


async def test_the_problems_of_an_answer_over_http_are_reported() -> None:
    reported = Reported()
    body = sse("danced") + b"data: {broken\n\n" + sse("output_item.done", item={"type": "dance"})

    async with backend(says(http(body + COMPLETED))) as url:
        source = ResponsesApiSource(ResponsesApi(url, KEY), report=reported.report)
        await recipe(Settings()).run(source, Collect(), TURN)
    assert reported == [
        ("unknown_event", "response.danced"),
        ("unreadable_item", "line"),
        ("unreadable_item", "dance"),
    ]
