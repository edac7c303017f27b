from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import pytest

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure, ProxyError
from pipeline.events import Event, Failed, TextDelta, ToolCall, TurnEnd, Usage
from pipeline.formats.transcripts import Record
from pipeline.turn import Tool, Turn
from sources.decode.http_answer import HttpAnswer
from sources.decode.turn_decoder import TurnDecoder

Message: TypeAlias = dict[str, Any]

CALL: Message = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "localSearch",
    "arguments": '{"query": "x",  "n": 1.0}',
}
SAID: Message = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Let me look."}],
}
USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
CHAT_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","choices":[]}\n\n'


def read(*chunks: bytes, answer: HttpAnswer | None = None) -> list[Event]:
    answer = answer or HttpAnswer(TurnDecoder())
    events = [event for chunk in chunks for event in answer.feed(chunk, 1.0)]
    return [*events, *answer.close(2.0)]


def refused(*chunks: bytes) -> Failure:
    with pytest.raises(ProxyError) as raised:
        read(*chunks)
    return raised.value.failure


def one_by_one(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def stream(*messages: Message) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(message).encode() for message in messages)


def delta(text: str) -> Message:
    return {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text}


def words(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


# -- a stream --------------------------------------------------------------------------------------


def test_a_stream_is_read_as_it_comes() -> None:
    answer = HttpAnswer(TurnDecoder())
    assert words(answer.feed(stream(delta("a"), delta("b")), 1.0)) == "ab"
    assert words(answer.feed(stream(delta("c")), 1.0)) == "c"
    assert answer.close(1.0) == []


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n\n", b": hello\n\n"])
def test_how_a_stream_begins_makes_no_difference(mark: bytes) -> None:
    body = mark + stream(delta("ab")) + b"data: [DONE]\n\n"
    assert read(body) == read(*one_by_one(body)) == read(stream(delta("ab")) + b"data: [DONE]\n\n")


def test_a_type_that_only_the_event_name_has_is_taken_from_there() -> None:
    body = b'event: response.output_text.delta\ndata: {"delta": "hi"}\n\n'
    assert words(read(body)) == "hi"


def test_a_type_in_the_message_wins_over_the_event_name() -> None:
    body = b"event: response.failed\n" + stream(delta("hi"))
    assert words(read(body)) == "hi"


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"error": {"message": "too much", "code": "rate_limit_exceeded"}}\n\n',
        b'event: error\ndata: {"message": "too much", "code": "rate_limit_exceeded"}\n\n',
        b'event: oops\ndata: {"error": "too much", "code": "rate_limit_exceeded"}\n\n',
        b'{"error": {"message": "too much", "code": "rate_limit_exceeded"}}',
        b'[{"error": {"message": "too much", "code": "rate_limit_exceeded"}}]',
    ],
)
def test_an_error_without_a_type_is_an_error(body: bytes) -> None:
    failed, end = read(body)
    assert isinstance(failed, Failed)
    assert (failed.error.message, failed.error.status) == ("too much", 429)
    assert end == TurnEnd("failed", at=end.at)


def test_a_broken_message_is_counted_and_the_others_are_read() -> None:
    decoder = TurnDecoder()
    body = b'data: {"type": "respo\n\ndata: 7\n\ndata: \xff\n\n' + stream(delta("still here"))
    assert words(read(body, answer=HttpAnswer(decoder))) == "still here"
    assert decoder.dropped["a line that is not JSON"] == 2
    assert decoder.dropped["not an object"] == 1


def test_who_watches_is_shown_every_message() -> None:
    seen: list[tuple[int, bool, str | None, list[str], int]] = []

    def watch(record: Record, events: Iterable[Event], reasons: list[str]) -> None:
        told = len(list(events))
        seen.append((record.line, bool(record.message), record.problem, reasons, told))

    body = stream(delta("a"), {"type": "unheard.of"}) + b"data: {\n\ndata: [DONE]\n\n"
    read(body, answer=HttpAnswer(TurnDecoder(), watch=watch))
    assert seen == [
        (1, True, None, [], 1),
        (2, True, None, ["unknown type: unheard.of"], 0),
        (3, False, "a line that is not JSON", [], 0),
        (4, True, None, [], 1),
    ]


# -- one JSON object -------------------------------------------------------------------------------


def response(**fields: Any) -> bytes:
    body = {"id": "resp_1", "object": "response", "status": "completed", "error": None}
    return json.dumps(body | fields, indent=1).encode()


@pytest.mark.parametrize("split", [False, True])
def test_an_answer_that_was_not_streamed_is_the_same_answer(split: bool) -> None:
    body = response(output=[SAID, CALL], usage=USAGE)
    events = read(*(one_by_one(body) if split else [body]))
    assert words(events) == "Let me look."
    assert Usage(3, 4, 7, at=2.0) in events
    turn = Turn(tools=(Tool("other"), Tool("localSearch")))
    calls = [e for e in recipe(Settings()).process(events, turn) if isinstance(e, ToolCall)]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        ("call_1", "localSearch", '{"query": "x",  "n": 1.0}')
    ]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"status": "completed"}, TurnEnd("completed", at=2.0)),
        ({"status": None}, TurnEnd("completed", at=2.0)),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            TurnEnd("max_output_tokens", at=2.0),
        ),
        (
            {"status": "failed", "error": {"code": "server_error", "message": "boom"}},
            TurnEnd("failed", at=2.0),
        ),
        ({"status": "in_progress"}, TextDelta("Let me look.", "msg_1", at=2.0)),
    ],
)
def test_an_answer_that_was_not_streamed_ends_as_it_says(
    fields: dict[str, Any], end: Event
) -> None:
    assert read(response(output=[SAID], **fields))[-1] == end


# -- anything else ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html><html><body>Welcome</body></html>",
        b"\xef\xbb\xbf\n  <html>Welcome</html>",
        b"Welcome to the backend",
        b'{"object": "chat.completion", "note": "Welcome"}',
        b'{"Welcome": ',
        b'["Welcome"]',
        b"data: Welcome\n\n",
        b"Welcome \xff\xfe\x00",
        CHAT_CHUNK + b": Welcome\n\n",
        CHAT_CHUNK + b"data: [DONE]\n\n",
    ],
)
def test_what_is_not_the_responses_api_is_said_to_be_something_else(body: bytes) -> None:
    for chunks in ([body], one_by_one(body)):
        failure = refused(*chunks)
        assert (failure.status, failure.code) == (502, "upstream_error")
        assert "not the Responses API" in failure.message
        assert "http://localhost:8000/v1" in failure.message


def test_what_came_instead_is_shown() -> None:
    assert "(Ollama is running)" in refused(b"Ollama is running").message


def test_a_page_is_refused_before_it_has_ended() -> None:
    answer = HttpAnswer(TurnDecoder())
    with pytest.raises(ProxyError, match="not the Responses API"):
        answer.feed(b"<html>", 0.0)


def test_what_must_not_be_shown_is_hidden_before_it_is_cut_to_length() -> None:
    secret = "k" * 150

    def hide(text: str) -> str:
        return text.replace(secret, "…")

    answer = HttpAnswer(TurnDecoder(), hide=hide)
    with pytest.raises(ProxyError) as raised:
        read(b"your key is %b" % secret.encode(), answer=answer)
    assert "kk" not in raised.value.failure.message


@pytest.mark.parametrize("body", [b"", b" \r\n", b"\xef\xbb\xbf", b": ping\n\n"])
def test_nothing_at_all_is_not_something_else(body: bytes) -> None:
    assert read(body) == []


@pytest.mark.parametrize("body", [b'{"a": "' + b"x" * 200, b" " * 200, b"data: " + b"x" * 200])
def test_a_message_over_the_limit_is_refused(body: bytes) -> None:
    for chunks in ([body], one_by_one(body)):
        answer = HttpAnswer(TurnDecoder(), longest=100)
        with pytest.raises(ProxyError, match="more than 100 bytes"):
            read(*chunks, answer=answer)
