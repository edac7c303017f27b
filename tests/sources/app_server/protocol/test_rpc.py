"""The app-server's parts without an app-server: lines, messages and mailboxes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.loose_json import Json
from sources.app_server.protocol.rpc import (
    OVERLOADED,
    UNKNOWN_METHOD,
    Answer,
    Notification,
    RpcCore,
    RpcError,
    ServerRequest,
    thread_of,
)
from sources.app_server.transport.framing import LineFramer

# -- lines ---------------------------------------------------------------------------------------

BYTES = st.binary(max_size=60) | st.text("ab\n\r ", max_size=60).map(str.encode)


def read(pieces: Sequence[bytes], longest: int = 1000) -> tuple[list[bytes], bytes, int]:
    framer = LineFramer(longest)
    lines = [line for piece in pieces for line in framer.feed(piece)]
    return lines, framer.close(), framer.overlong


@given(BYTES, st.integers(0, 12))
def test_one_byte_at_a_time_gives_the_same_lines_as_everything_at_once(
    data: bytes, longest: int
) -> None:
    one_by_one = [data[place : place + 1] for place in range(len(data))]
    assert read(one_by_one, longest) == read([data], longest)


@given(st.lists(BYTES), st.integers(0, 12))
def test_no_way_of_cutting_changes_the_lines(pieces: list[bytes], longest: int) -> None:
    assert read(pieces, longest) == read([b"".join(pieces)], longest)


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(0, 12))
def test_a_line_over_the_limit_is_skipped_and_counted_and_the_next_is_read(
    lines: list[bytes], longest: int
) -> None:
    found, rest, overlong = read([b"".join(line + b"\n" for line in lines)], longest)
    assert found == [line.strip() for line in lines if len(line) <= longest and line.strip()]
    assert overlong == sum(len(line) > longest for line in lines)
    assert rest == b""


def test_what_comes_after_the_last_line_is_kept_for_the_end() -> None:
    assert read([b"one\r\n\ntw", b"o"]) == ([b"one"], b"two", 0)
    assert read([b"x" * 1001]) == ([], b"", 1)


# -- messages ------------------------------------------------------------------------------------


def incoming(*messages: object) -> list[Any]:
    lines = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    return list(RpcCore().incoming(lines))


def test_what_is_sent_has_no_jsonrpc_member_and_its_own_number() -> None:
    rpc = RpcCore()
    first, message = rpc.request("thread/start", {"cwd": "ö"})
    second, _ = rpc.request("thread/start", {})
    assert json.loads(message) == {"id": first, "method": "thread/start", "params": {"cwd": "ö"}}
    assert first != second
    assert json.loads(rpc.notification("initialized")) == {"method": "initialized"}
    assert rpc.counters["sent thread/start"] == 2


@pytest.mark.parametrize("envelope", [{}, {"jsonrpc": "2.0"}])
def test_a_jsonrpc_member_is_accepted_and_means_nothing(envelope: dict[str, Any]) -> None:
    answer, told, asked = incoming(
        {**envelope, "id": 7, "result": {"a": 1}},
        {**envelope, "method": "warning", "params": {"threadId": "t"}},
        {**envelope, "id": 0, "method": "item/tool/call", "params": {}},
    )
    assert answer == Answer(7, {"a": 1})
    assert isinstance(told, Notification)
    assert (told.method, thread_of(told)) == ("warning", "t")
    assert isinstance(asked, ServerRequest)


@pytest.mark.parametrize("identity", [0, 1, "ask-1", ""])
def test_a_question_is_answered_under_the_very_id_it_came_with(identity: int | str) -> None:
    (asked,) = incoming({"id": identity, "method": "execCommandApproval", "params": {}})
    assert isinstance(asked, ServerRequest)
    said = json.loads(RpcCore().result(asked, {"decision": "denied"}))
    assert said == {"id": identity, "result": {"decision": "denied"}}
    assert type(said["id"]) is type(identity)
    refused = json.loads(RpcCore().refusal(asked, "no"))
    assert refused == {"id": identity, "error": {"code": UNKNOWN_METHOD, "message": "no"}}


BROKEN = [b"{", b"nonsense", b'{"id": 1, "result"', b"\x00", b"\xff\xfe", b"[" * 100_000]
NO_MESSAGES: list[Any] = [
    [],
    None,
    5,
    "text",
    {},
    {"id": 1},
    {"id": None, "result": {}},
    {"id": "1", "result": {}},
    {"id": 1.5, "result": {}},
    {"id": [1], "result": {}},
    {"method": 5},
    {"result": {}},
]


def test_broken_lines_and_what_is_no_message_are_counted_and_skipped() -> None:
    rpc = RpcCore()
    good = b'{"id": 1, "result": {}}'
    lines = [*BROKEN, good, *(json.dumps(message).encode() for message in NO_MESSAGES), good]
    assert rpc.incoming(lines) == [Answer(1, {}), Answer(1, {})]
    assert rpc.counters == {"broken line": len(BROKEN), "not a message": len(NO_MESSAGES)}


def test_true_is_no_number_and_so_no_id() -> None:
    """In Python, true is 1: an answer to it must not be taken for an answer to request 1."""
    assert incoming({"id": True, "result": {}}) == []


@given(st.lists(st.binary(max_size=50)))
def test_no_line_makes_the_reader_fail(lines: list[bytes]) -> None:
    RpcCore().incoming(lines)


def test_a_lone_surrogate_of_the_backend_is_mended() -> None:
    (told,) = incoming(b'{"method": "warning", "params": {"threadId": "t", "x": "a\\ud800b"}}')
    assert {*told.params["x"]} == {"a", "\ufffd", "b"}


@pytest.mark.parametrize("error", [{"code": -32600, "message": "no"}, "boom", [1], {"code": "x"}])
def test_an_answer_with_an_error_is_an_error_whatever_it_looks_like(error: object) -> None:
    (answer,) = incoming({"id": 1, "error": error})
    assert answer.error is not None
    assert RpcError("turn/start", answer.error).failure.status >= 400


def test_an_overloaded_backend_is_a_503() -> None:
    error = RpcError("turn/start", {"code": OVERLOADED, "message": "Server overloaded"})
    assert (error.failure.status, error.failure.code) == (503, "server_is_overloaded")


@pytest.mark.parametrize(
    "params", [{"threadId": "t"}, {"conversationId": "t"}, {"thread": {"id": "t"}}]
)
def test_a_message_has_its_thread_in_either_dialect(params: Json) -> None:
    (told,) = incoming({"method": "x", "params": params})
    assert thread_of(told) == "t"
