"""What `smoke` takes for a fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.cli.smoke_checks import Answer, WrongError, check_call, read_stream

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: %b\n\n" % json.dumps(body).encode()


def call(**changes: Any) -> dict[str, Any]:
    made = {"id": "c1", "type": "function", "index": 0}
    return made | {"function": {"name": "localSearch", "arguments": "{}"}} | changes


def test_a_good_stream_is_folded() -> None:
    stream = chunk({"content": "Hel"}) + b": ping\n\n" + chunk({"content": "lo"})
    stream += chunk({"tool_calls": [call()]}) + chunk({}, "tool_calls") + DONE
    assert read_stream(stream) == Answer("Hello", [call()], "tool_calls")


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
    ],
)
def test_a_bad_stream_is_a_fault(stream: bytes, fault: str) -> None:
    with pytest.raises(WrongError, match=fault):
        read_stream(stream)


@pytest.mark.parametrize(
    ("calls", "finish", "fault"),
    [
        ([], "stop", "0 calls"),
        ([call(), call()], "tool_calls", "2 calls"),
        ([call()], "stop", "finish_reason is stop"),
        ([call(id="")], "tool_calls", "no id"),
        ([call(function={"name": "x", "arguments": "{}"})], "tool_calls", "the call is of x"),
        ([call(function={"name": "localSearch", "arguments": "[]"})], "tool_calls", "no object"),
    ],
)
def test_a_bad_call_is_a_fault(calls: list[Any], finish: str, fault: str) -> None:
    with pytest.raises(WrongError, match=fault):
        check_call(Answer("", calls, finish))
