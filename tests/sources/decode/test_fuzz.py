from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.events import EVENT_TYPES, TurnEnd
from pipeline.formats.transcripts import Record, parse_line, read_records
from pipeline.loose_json import is_json, is_list
from sources.decode import legacy, responses, v2
from sources.decode.turn_decoder import TurnDecoder

Json: TypeAlias = Any

TRANSCRIPTS = Path(__file__).parents[3] / "examples" / "transcripts"
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "readNote"}
PART = {"type": "tool_use", "id": "call_2", "function": {"name": "readNote", "arguments": "{}"}}
USAGE = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2}
ERROR = {"code": "server_error", "message": "no", "param": None}
MESSAGE = {"type": "message", "id": "msg_1", "content": [{"type": "text", "text": "Hi"}, PART]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "Hm"}]}

# Real transcripts hold the first two dialects only; these lines stand for the third.
RESPONSES: list[Json] = [
    {"type": "response.output_item.added", "output_index": 0, "item": REASONING},
    {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "Hm"},
    {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
    {"type": "response.output_item.added", "output_index": 1, "item": CALL},
    {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": '{"a'},
    {"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": "{}"},
    {"type": "response.content_part.added", "item_id": "msg_1", "part": PART},
    {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"},
    {"type": "response.output_text.done", "item_id": "msg_1", "text": "Hi"},
    {"type": "response.output_item.done", "output_index": 2, "item": MESSAGE},
]
ENDS: list[Json] = [
    {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "x"}}},
    {"type": "response.failed", "response": {"id": "resp_1", "error": ERROR}},
    {"type": "response.completed", "response": {"id": "resp_1", "usage": USAGE}},
]
WORDS = [
    *["additionalDetails", "agentMessage", "AgentMessage", "args", "arguments", "assistant"],
    *["call_id", "call_name", "callId", "choices", "codex_error_info", "codexErrorInfo"],
    *["content", "contentItems", "conversationId", "delta", "dynamicToolCall"],
    *["encrypted_content", "error", "failed", "function", "function_call", "function_call_output"],
    *["function_name", "httpStatusCode", "id", "incomplete_details", "index", "info", "input"],
    *["input_tokens", "inputTokens", "interrupted", "item", "item_id", "itemId", "last"],
    *["last_token_usage", "mcpToolCall", "message", "method", "msg", "name", "namespace"],
    *["output", "output_index", "parameters", "params", "part", "reason", "reasoning", "response"],
    *["result", "role", "status", "summary", "summary_index", "summaryIndex", "text", "threadId"],
    *["tokenUsage", "tool", "tool_calls", "tool_use", "total", "total_token_usage", "totalTokens"],
    *["turn", "turnId", "type", "usage", "willRetry"],
]
ODDITIES: list[Json] = [
    None,
    True,
    -1,
    2**70,
    0.5,
    "",
    "x",
    [],
    [[]],
    [{}],
    {},
    {"type": []},
    {"text": 1},
]


def without_prefix(message: Json) -> Json:
    return {**message, "method": message["method"].removeprefix(legacy.PREFIX)}


def recordings() -> Iterator[list[Json]]:
    """What backends have said: as recorded, the older dialect alone, and Responses events."""
    for path in sorted(TRANSCRIPTS.rglob("*.jsonl")):
        messages = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        yield messages
        events = [m for m in messages if m.get("method", "").startswith(legacy.PREFIX)]
        if events:
            yield events
            yield [without_prefix(message) for message in events]
    for end in ENDS:
        yield [*RESPONSES, end]


def entries_of(value: object) -> list[tuple[Any, Json]]:
    if is_json(value):
        return list(value.items())
    return list(enumerate(value)) if is_list(value) else []


def holders_in(value: object) -> Iterator[Json]:
    """Every object and array in a value that has something in it, itself included."""
    if entries := entries_of(value):
        yield value
        for _, inner in entries:
            yield from holders_in(inner)


RECORDINGS = list(recordings())
KINDS = sorted({*v2.HANDLERS, *legacy.HANDLERS, *responses.HANDLERS, *v2.NOISE})

words = st.sampled_from(WORDS)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | words


def nested(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    keys = words | st.text(max_size=5)
    return st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)


values: st.SearchStrategy[Json] = st.sampled_from(ODDITIES).map(deepcopy) | st.recursive(
    leaves, nested, max_leaves=8
)


@st.composite
def addressed_messages(draw: st.DrawFn) -> Json:
    """A message under a name that is known, its content anything at all."""
    kind = draw(st.sampled_from(KINDS))
    body: dict[str, Json] = draw(st.dictionaries(words, values, max_size=6))
    forms: list[Json] = [
        {"method": kind, "params": body},
        {"method": legacy.PREFIX + kind, "params": {"msg": body}},
        {"method": kind, "params": draw(values)},
        {"type": kind, "msg": body},
        {**body, "type": kind},
        {"id": 1, "error": body},
    ]
    return draw(st.sampled_from(forms))


chosen = st.sampled_from(RECORDINGS) | st.sampled_from(RECORDINGS[-len(ENDS) :])


@st.composite
def mutated_recordings(draw: st.DrawFn) -> list[Json]:
    """A recording with some of its values taken out or put in their place by anything at all."""
    # Through JSON and not deepcopy: what is shared between messages must not change in all.
    messages: list[Json] = json.loads(json.dumps(draw(chosen)))
    for _ in range(draw(st.integers(1, 6))):
        message = draw(st.sampled_from(messages))
        holder = draw(st.sampled_from(list(holders_in(message))))
        key = draw(st.sampled_from([key for key, _ in entries_of(holder)]))
        if draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = draw(values)
        messages = [message for message in messages if message]
    return messages


thorough = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def check_decoding(messages: Iterable[Json]) -> None:
    """Feed a decoder, and see that it keeps its word whatever it is fed."""
    decoder = TurnDecoder()
    ended = False
    for message in messages:
        events = decoder.feed(message, 1.0)
        assert {type(event) for event in events} <= EVENT_TYPES
        ends = [isinstance(event, TurnEnd) for event in events]
        assert not (ended and events), "something came after the end of the turn"
        assert not any(ends[:-1]), "the end of the turn was not the last event"
        ended = ended or any(ends)
        assert decoder.ended == ended
    assert len(decoder.dropped) < 200


@thorough
@given(st.lists(values, max_size=5))
def test_any_json_at_all_is_decoded_or_dropped(messages: list[Json]) -> None:
    check_decoding(messages)


@thorough
@given(st.lists(addressed_messages(), max_size=8))
def test_any_content_under_a_known_name_is_decoded_or_dropped(messages: list[Json]) -> None:
    check_decoding(messages)


@thorough
@given(mutated_recordings())
def test_a_damaged_recording_is_decoded_or_dropped(messages: list[Json]) -> None:
    check_decoding(messages)


def replaced_everywhere(message: Json) -> Iterator[Json]:
    """The message, once for each value in it and each oddity in that value's place."""
    text = json.dumps(message)
    for at, holder in enumerate(holders_in(message)):
        for key, _ in entries_of(holder):
            for oddity in ODDITIES:
                copy = json.loads(text)
                list(holders_in(copy))[at][key] = oddity
                yield copy


def test_no_value_of_any_message_needs_to_be_of_its_type() -> None:
    shapes = {
        (message.get("method"), message.get("type"), *map(type, holders_in(message))): message
        for recording in RECORDINGS
        for message in recording
        if "method" in message or "type" in message
    }
    for message in shapes.values():
        for odd in replaced_everywhere(message):
            check_decoding([odd])


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("a", '{"method":"item/tool/call","params":{"callId":"c","tool":"t","arguments":@}}'),
        ("delta", '{"type":"agent_message_delta","delta":@}'),
        (
            "content",
            '{"type":"raw_response_item","item":{"type":"function_call_output","output":@}}',
        ),
    ],
    ids=["arguments", "deltas", "outputs"],
)
def test_what_is_nested_as_deeply_as_can_be_read_is_decoded_or_dropped(
    key: str, shape: str
) -> None:
    for depth in range(1, 1000):
        line = shape.replace("@", f'{{"{key}":' * depth + "1" + "}" * depth)
        try:
            message = parse_line(line.encode())
        except (ValueError, RecursionError):
            assert depth > 100, "nothing to speak of was read"
            return  # deeper than this cannot be read at all
        check_decoding([message])


def test_recordings_that_were_not_damaged_are_decoded_to_their_end() -> None:
    assert len(RECORDINGS) > 10
    for messages in RECORDINGS:
        decoder = TurnDecoder()
        for message in messages:
            decoder.feed(message)
        assert decoder.ended


# -- lines -----------------------------------------------------------------------------------------

FRAGMENTS = [
    *[b"data:", b"data: ", b"event: x", b":", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf"],
    *[b'{"at":', b'"message":', b'{"emittedAtMs":', b"}", b"[", b"]", b",", b"1", b"-1e9"],
    *[b'"\\ud800"', b'"\xff"', b"NaN", b"[DONE]", b"{}", b'{"type":"x"}'],
]

pieced = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=3)).map(b"".join)


def check_reading(data: bytes) -> list[Record]:
    lines = data.splitlines(keepends=True)
    found = list(read_records(lines))
    assert len(found) <= len(lines)
    for record in found:
        assert record.problem is None or record.message is None
        # Whatever was read can be written again: nothing in it is no Unicode.
        json.dumps(record.message, ensure_ascii=False).encode()
    return found


@thorough
@given(st.binary(max_size=200) | pieced)
@example(b'data: {"n":1}\n\n{"n":2}\n')
def test_any_bytes_at_all_are_read(data: bytes) -> None:
    check_reading(data)


@thorough
@given(st.lists(values))
def test_every_message_written_as_a_line_is_read(messages: list[Json]) -> None:
    lines = [json.dumps(message) for message in messages]
    found = check_reading("".join(f"{line}\n" for line in lines).encode())
    assert len(found) == len(lines)
    assert [record.problem for record in found] == [None] * len(lines)
