"""What `smoke` takes for a fault, and what for the model's own choice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.cli import smoke
from pipeline.cli.main import main
from pipeline.cli.smoke_checks import (
    CALL_SLOWLY,
    CHECKS,
    GREETING,
    check_call,
    check_calls,
    several_calls,
)
from pipeline.cli.smoke_target import (
    CHAT,
    RESPONSES,
    Answer,
    Api,
    Target,
    UndecidedError,
    WrongError,
    must,
)
from pipeline.events import TextDelta, TurnEnd
from sources.demo.script import answer as scripted
from tests.serve.scripted import Script, ScriptedBackend, served
from tests.serve.scripted import call as makes

DONE = b"data: [DONE]\n\n"


def call(**changes: Any) -> dict[str, Any]:
    made = {"id": "c1", "type": "function"}
    return made | {"function": {"name": "localSearch", "arguments": "{}"}} | changes


# -- streams of chats ------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: %b\n\n" % json.dumps(body).encode()


def calling(index: int) -> bytes:
    return chunk({"tool_calls": [call(index=index)]})


def test_a_good_stream_is_folded() -> None:
    stream = chunk({"content": "Hel"}) + b": ping\n\n" + chunk({"content": "lo"})
    stream += calling(0) + chunk({}, "tool_calls") + DONE
    assert CHAT.read_stream(stream) == Answer("Hello", [call()], "tool_calls")


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"", r"\[DONE\]"),
        (chunk({}, "stop"), r"\[DONE\]"),
        (chunk({}, "stop") + DONE + DONE, r"\[DONE\]"),
        (chunk({}, "stop") + DONE + chunk({}), r"\[DONE\]"),
        (chunk({"content": "x"}) + DONE, "0 finish reasons"),
        (chunk({}, "stop") + chunk({}, "stop") + DONE, "after the finish"),
        (chunk({}, "stop") + chunk({"content": "x"}) + DONE, "after the finish"),
        (b'data: {"error":{"message":"boom"}}\n\n' + DONE, "boom"),
        (calling(1) + chunk({}, "tool_calls") + DONE, r"numbered \[1\]"),
        (calling(0) + calling(0) + chunk({}, "tool_calls") + DONE, r"numbered \[0, 0\]"),
    ],
)
def test_a_bad_stream_is_a_fault(stream: bytes, fault: str) -> None:
    with pytest.raises(WrongError, match=fault):
        CHAT.read_stream(stream)


# -- streams of responses --------------------------------------------------------------------------

MESSAGE: dict[str, Any] = {"type": "message", "id": "m", "content": [{"text": "Hello"}]}
CALLED: dict[str, Any] = {
    "type": "function_call",
    "id": "fc",
    "call_id": "c1",
    "name": "localSearch",
    "arguments": "{}",
}


def response(*items: Any, status: str = "completed") -> dict[str, Any]:
    return {"status": status, "output": list(items)}


CREATED: dict[str, Any] = {"type": "response.created"}
HEL: dict[str, Any] = {"type": "response.output_text.delta", "delta": "Hel"}
LO: dict[str, Any] = {"type": "response.output_text.delta", "delta": "lo"}
SAID: dict[str, Any] = {"type": "response.output_item.done", "item": MESSAGE}
MADE: dict[str, Any] = {"type": "response.output_item.done", "item": CALLED}


def end(*items: Any, status: str = "completed") -> dict[str, Any]:
    return {"type": f"response.{status}", "response": response(*items, status=status)}


GOOD = [CREATED, HEL, LO, SAID, MADE, end(MESSAGE, CALLED)]


def sent(*events: dict[str, Any]) -> bytes:
    numbered = [{**event, "sequence_number": at} for at, event in enumerate(events)]
    return b"".join(frame(str(event["type"]), event) for event in numbered) + DONE


def frame(name: str, event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(event).encode())


def test_a_good_stream_of_events_is_read_as_the_response_in_it() -> None:
    whole = RESPONSES.read(response(MESSAGE, CALLED))
    assert whole == Answer("Hello", [call()], "tool_calls", (MESSAGE, CALLED))
    assert RESPONSES.read_stream(sent(*GOOD)) == whole


@pytest.mark.parametrize(
    ("status", "items", "finish"),
    [
        ("completed", (MESSAGE,), "stop"),
        ("incomplete", (MESSAGE,), "incomplete"),
        ("failed", (CALLED,), "failed"),
    ],
)
def test_how_a_response_ended(status: str, items: tuple[Any, ...], finish: str) -> None:
    assert RESPONSES.read(response(*items, status=status)).finish == finish


WRONG_NUMBER = {**CREATED, "sequence_number": 1}
BOOM = {"type": "error", "message": "boom", "sequence_number": 0}


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"", r"\[DONE\]"),
        (sent(*GOOD).removesuffix(DONE), r"\[DONE\]"),
        (frame("error", BOOM) + DONE, "boom"),
        (frame("response.completed", {**CREATED, "sequence_number": 0}) + DONE, "not its type"),
        (frame("response.created", WRONG_NUMBER) + DONE, "do not count from 0"),
        (sent(*GOOD[1:]), "begin with response.created"),
        (sent(*GOOD[:-1]), "0 ends"),
        (sent(*GOOD, GOOD[-1]), "2 ends"),
        (sent(*GOOD, HEL), "1 ends"),
        (sent(CREATED, HEL, LO, SAID, end(MESSAGE, CALLED)), "differs from the items before it"),
        (sent(CREATED, HEL, SAID, MADE, end(MESSAGE, CALLED)), "do not add up to the whole text"),
        (sent(CREATED, MADE, end({**CALLED, "id": "c1"})), "same id and call_id"),
    ],
)
def test_a_bad_stream_of_events_is_a_fault(stream: bytes, fault: str) -> None:
    with pytest.raises(WrongError, match=fault):
        RESPONSES.read_stream(stream)


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "finish", "fault"),
    [
        ([], "stop", "0 calls"),
        ([call(), call(id="c2")], "tool_calls", "2 calls"),
        ([call()], "stop", "finish_reason is stop"),
        ([call(id="")], "tool_calls", "no id"),
        ([call(function={"name": "x", "arguments": "{}"})], "tool_calls", "a call is of x"),
        ([call(function={"name": "readNote", "arguments": "{}"})], "tool_calls", "of readNote"),
        (
            [call(function={"name": "localSearch", "arguments": "[]"})],
            "tool_calls",
            "not an object",
        ),
    ],
)
def test_a_bad_call_is_a_fault(calls: list[Any], finish: str, fault: str) -> None:
    with pytest.raises(WrongError, match=fault):
        check_call(Answer("", calls, finish))


def test_two_calls_of_one_id_are_a_fault() -> None:
    with pytest.raises(WrongError, match="same id"):
        check_calls(Answer("", [call(), call()], "tool_calls"))


# -- several calls ---------------------------------------------------------------------------------

TWO: Script = (makes("a", 0, "localSearch"), makes("b", 1, "readNote"), TurnEnd())
ONE: Script = (makes("a", 0, "localSearch"), TurnEnd())
NONE: Script = (TextDelta("No."), TurnEnd())


def model(script: Script, greeting: str) -> ScriptedBackend:
    """A model that plays a script when it is asked for calls, and greets in words of its own."""
    greets: Script = (TextDelta(greeting), TurnEnd())
    return ScriptedBackend(lambda turn: script if turn.tools else greets)


async def several(backend: ScriptedBackend, api: Api, *, stream: bool, **flags: Any) -> str:
    async with served(backend, **flags) as here:
        return await several_calls(api, stream)(Target(here.client, here.url, "gpt-5"))


FIRST_ONLY = {"stop_after_tools_mode": "first"}
SEVERAL: dict[str, tuple[ScriptedBackend, dict[str, str], str]] = {
    "all of them come": (model(TWO, "Hi"), {}, "2 calls in "),
    "a strange model makes one": (model(ONE, "Hi"), {}, "n/a: 1 calls came; the model made fewer"),
    "none is made": (model(NONE, GREETING), {}, "n/a: 0 calls came; the model made fewer"),
    "one of several comes": (model(ONE, GREETING), {}, "WRONG: the model made several calls"),
    "the first ends the turn": (model(TWO, GREETING), FIRST_ONLY, "n/a: 1 calls came; the server"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=["chat", "responses"])
@pytest.mark.parametrize(("backend", "flags", "found"), SEVERAL.values(), ids=SEVERAL)
async def test_a_call_that_is_missing_is_a_fault_only_where_the_model_is_known_to_make_it(
    backend: ScriptedBackend, flags: dict[str, str], found: str, api: Api, stream: bool
) -> None:
    try:
        told = await several(backend, api, stream=stream, **flags)
    except UndecidedError as reason:
        told = f"n/a: {reason}"
    except WrongError as problem:
        told = f"WRONG: {problem}"
    assert told.startswith(found)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_several_calls_slow_ones_and_a_follow_up_are_tried_on_each_api(api: str) -> None:
    tried = {name.removesuffix(", streamed") for name in CHECKS if name.startswith(f"{api}: ")}
    several = {"several calls", "a slow burst", "a call, its output, the answer"}
    assert tried >= {f"{api}: {what}" for what in several}


async def test_calls_that_a_limit_kept_back_are_not_missed() -> None:
    with pytest.raises(UndecidedError, match="configured to forward fewer"):
        await several(model(TWO, GREETING), CHAT, stream=True, tool_block_max=1)


def test_a_scripted_model_that_does_not_know_the_slow_burst_makes_no_call() -> None:
    said = CALL_SLOWLY.replace("SLOWBURST", "SOMETHING")
    tools = CHAT.request(said, tools=True)["tools"]
    offered = [tool["function"] for tool in tools]
    items = [{"type": "message", "role": "user", "content": said}]
    (item,) = scripted({"input": items, "tools": offered}).items
    assert item["type"] == "message"


# -- the command -----------------------------------------------------------------------------------


async def fine(_: Target) -> str:
    return "well"


async def undecided(_: Target) -> str:
    raise UndecidedError("who knows")


async def wrong(_: Target) -> str:
    must(False, "a fault")
    return ""


async def strange(_: Target) -> str:
    raise KeyError("choices")


@pytest.mark.parametrize(
    ("checks", "status", "summary"),
    [
        ([fine, fine], 0, "2 of 2 ok, 0 wrong, 0 n/a"),
        ([fine, undecided], 0, "1 of 2 ok, 0 wrong, 1 n/a"),
        ([wrong, strange, undecided, fine], 1, "1 of 4 ok, 2 wrong, 1 n/a"),
    ],
)
def test_what_the_model_did_not_do_is_neither_fine_nor_wrong(
    checks: list[Any],
    status: int,
    summary: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(smoke, "CHECKS", dict(enumerate(checks)))
    assert main(["smoke", "http://127.0.0.1:1", "--model", "m"]) == status
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"{summary}, with the model m"
