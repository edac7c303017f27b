from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import pytest

from pipeline.assembly import Settings, recipe
from pipeline.errors import Failure
from pipeline.events import (
    Event,
    Failed,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolCallFragment,
    ToolOutput,
    TurnEnd,
    Usage,
)
from pipeline.formats.transcripts import read_records
from pipeline.turn import Tool, Turn
from sources.decode.turn_decoder import TurnDecoder

Message: TypeAlias = dict[str, Any]

# The tool that is called is not the first: a name that was lost would be inferred as the other.
TOOLS = Turn(tools=(Tool("readNote"), Tool("localSearch")))
EXACT = '{"query": "x",  "n": 1.0, "s": "\\u00e9\\n"}'


def sse(kind: str, **fields: Any) -> Message:
    return {"type": f"response.{kind}", **fields}


def message_item(*content: Message, item_id: str = "msg_1") -> Message:
    return {"type": "message", "id": item_id, "role": "assistant", "content": list(content)}


def output_text(text: str) -> Message:
    return {"type": "output_text", "text": text, "annotations": []}


def call_item(**fields: Any) -> Message:
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", **fields}


def in_pieces(text: str = EXACT, *, item_id: str = "fc_1", **fields: Any) -> list[Message]:
    """The argument events of one call: deltas, none of them a token of JSON, then the end."""
    deltas = [text[at : at + 5] for at in range(0, len(text), 5)]
    named = {"item_id": item_id, "output_index": 1, **fields}
    return [
        *[sse("function_call_arguments.delta", delta=delta, **named) for delta in deltas],
        sse("function_call_arguments.done", arguments=text, **named),
    ]


COMPLETED = sse("completed", response={"id": "resp_1", "status": "completed", "usage": None})

USUAL: list[Message] = [
    sse("created", response={"id": "resp_1"}),
    sse("in_progress", response={"id": "resp_1"}),
    sse("output_item.added", output_index=0, item=message_item()),
    sse("content_part.added", item_id="msg_1", part=output_text("")),
    sse("output_text.delta", item_id="msg_1", delta="Let me "),
    sse("output_text.delta", item_id="msg_1", delta="look."),
    sse("output_text.done", item_id="msg_1", text="Let me look."),
    sse("content_part.done", item_id="msg_1", part=output_text("Let me look.")),
    sse("output_item.done", output_index=0, item=message_item(output_text("Let me look."))),
    sse("output_item.added", output_index=1, item=call_item(name="localSearch", arguments="")),
    *in_pieces(),
    sse("output_item.done", output_index=1, item=call_item(name="localSearch", arguments=EXACT)),
    COMPLETED,
]


def decode(messages: Iterable[object]) -> list[Event]:
    decoder = TurnDecoder()
    return [event for message in messages for event in decoder.feed(message)]


def texts(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def calls_of(messages: Iterable[object], turn: Turn = TOOLS) -> list[tuple[str, str, str]]:
    """Every call a client would be given, after the whole pipeline."""
    out = recipe(Settings()).process(decode(messages), turn)
    calls = [event for event in out if isinstance(event, ToolCall)]
    return [(call.call_id, call.name, call.arguments) for call in calls]


# -- the usual order -------------------------------------------------------------------------------


def test_the_usual_order_gives_the_text_by_deltas_and_one_whole_call() -> None:
    assert texts(decode(USUAL)) == ["Let me ", "look."]
    assert calls_of(USUAL) == [("call_1", "localSearch", EXACT)]


def test_the_usual_order_is_read_from_a_stream_of_server_sent_events() -> None:
    stream = "".join(f"event: {m['type']}\ndata: {json.dumps(m)}\n\n" for m in USUAL)
    records = read_records((stream + "data: [DONE]\n\n").encode().splitlines(keepends=True))
    messages = [record.message for record in records]
    assert len(messages) == len(USUAL) + 1
    assert decode(messages) == decode(USUAL)


def test_events_wrapped_as_notifications_are_equivalent() -> None:
    wrapped = [{"method": message["type"], "params": message} for message in USUAL]
    assert decode(wrapped) == decode(USUAL)


def test_several_calls_keep_their_order_ids_and_arguments() -> None:
    messages: list[Message] = []
    for number, name in enumerate(["localSearch", "readNote", "localSearch"]):
        item = call_item(id=f"fc_{number}", call_id=f"call_{number}", name=name)
        whole = f'{{"n": {number}}}'
        messages += [
            sse("output_item.added", output_index=number, item=item | {"arguments": ""}),
            *in_pieces(whole, item_id=f"fc_{number}"),
            sse("output_item.done", output_index=number, item=item | {"arguments": whole}),
        ]
    assert calls_of([*messages, COMPLETED]) == [
        ("call_0", "localSearch", '{"n": 0}'),
        ("call_1", "readNote", '{"n": 1}'),
        ("call_2", "localSearch", '{"n": 2}'),
    ]


# -- field names -----------------------------------------------------------------------------------

PART_TYPES = ["function_call", "function", "tool_use", "tool_call"]
NAMINGS: list[Message] = [
    {"name": "localSearch"},
    {"function_name": "localSearch"},
    {"tool_name": "localSearch"},
    {"call_name": "localSearch"},
    {"function": {"name": "localSearch"}},
]
IDENTITIES: list[Message] = [
    {"id": "call_1"},
    {"call_id": "call_1"},
    {"call_id": "call_1", "id": "fc_1"},
    {"function": {"id": "call_1"}},
]


def described(fields: object) -> str:
    return json.dumps(fields).replace('"', "") if isinstance(fields, dict) else str(fields)


def merged(naming: Message, identity: Message) -> Message:
    function = naming.get("function", {}) | identity.get("function", {})
    return naming | identity | ({"function": function} if function else {})


every_shape = pytest.mark.parametrize(
    ("part_type", "naming", "identity"),
    [
        *[(part_type, NAMINGS[0], IDENTITIES[1]) for part_type in PART_TYPES],
        *[("tool_call", naming, identity) for naming in NAMINGS for identity in IDENTITIES],
    ],
    ids=described,
)


@every_shape
def test_a_call_begun_as_a_content_part_comes_out_whole(
    part_type: str, naming: Message, identity: Message
) -> None:
    part = {"type": part_type, **merged(naming, identity)}
    messages = [
        sse("output_item.added", output_index=0, item=message_item()),
        sse("content_part.added", item_id="msg_1", output_index=0, part=part),
        *in_pieces(item_id="msg_1"),
        sse("output_item.done", output_index=0, item=message_item(part)),
        COMPLETED,
    ]
    assert calls_of(messages) == [("call_1", "localSearch", EXACT)]


@every_shape
def test_a_call_sent_only_inside_a_finished_message_comes_out_whole(
    part_type: str, naming: Message, identity: Message
) -> None:
    part = {"type": part_type, **merged(naming, identity), "arguments": EXACT}
    item = message_item(output_text("Let me look."), part)
    messages = [sse("output_item.done", output_index=0, item=item), COMPLETED]
    assert texts(decode(messages)) == ["Let me look."]
    assert calls_of(messages) == [("call_1", "localSearch", EXACT)]


def test_several_calls_inside_one_finished_message_come_out_in_order() -> None:
    parts = [
        {"type": "tool_use", "id": f"call_{n}", "name": "readNote", "input": {"n": n}}
        for n in range(3)
    ]
    messages = [sse("output_item.done", output_index=0, item=message_item(*parts)), COMPLETED]
    assert calls_of(messages) == [(f"call_{n}", "readNote", f'{{"n":{n}}}') for n in range(3)]


@pytest.mark.parametrize("naming", NAMINGS, ids=described)
def test_arguments_may_come_before_the_name(naming: Message) -> None:
    part = {"type": "function_call", "call_id": "call_1", **naming}
    messages = [*in_pieces(), sse("output_item.done", item=part | {"id": "fc_1"}), COMPLETED]
    assert calls_of(messages) == [("call_1", "localSearch", EXACT)]


def test_the_end_of_the_arguments_may_carry_the_name_and_the_id() -> None:
    messages = [*in_pieces(name="localSearch", call_id="call_1"), COMPLETED]
    assert calls_of(messages) == [("call_1", "localSearch", EXACT)]


def test_a_call_that_is_never_named_is_of_the_only_tool() -> None:
    turn = Turn(tools=(Tool("localSearch"),))
    assert calls_of([*in_pieces(call_id="call_1"), COMPLETED], turn) == [
        ("call_1", "localSearch", EXACT)
    ]


# -- text and reasoning ----------------------------------------------------------------------------


def test_text_sent_only_by_finished_items_comes_for_each() -> None:
    items = [message_item(output_text(text), item_id=text) for text in ("One.", "Two.")]
    messages = [sse("output_item.done", item=item) for item in items]
    assert texts(decode(messages)) == ["One.", "Two."]


def test_text_sent_only_when_its_part_is_done_comes_once() -> None:
    messages = [m for m in USUAL if m["type"] != "response.output_text.delta"]
    assert texts(decode(messages)) == ["Let me look."]


def test_equal_neighbouring_deltas_are_all_kept() -> None:
    deltas = [sse("output_text.delta", item_id="msg_1", delta=digit) for digit in "1000"]
    done = sse("output_item.done", item=message_item(output_text("1000")))
    assert texts(decode([*deltas, done])) == ["1", "0", "0", "0"]


def test_a_refusal_is_the_text_of_the_answer() -> None:
    messages = [sse("refusal.delta", delta="I can't"), sse("refusal.done", refusal="I can't")]
    assert texts(decode(messages)) == ["I can't"]


REASONING_ITEM = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm, so"}, {"text": "yes"}],
    "encrypted_content": "gAAAA",
}
SEALED = ReasoningItem("rs_1", ("Hm, so", "yes"), "gAAAA")


def test_reasoning_comes_by_its_deltas_and_then_sealed() -> None:
    deltas = [("Hm, ", 0), ("so", 0), ("yes", 1)]
    messages = [
        sse("output_item.added", item={"type": "reasoning", "id": "rs_1"}),
        *[
            sse("reasoning_summary_text.delta", item_id="rs_1", summary_index=part, delta=text)
            for text, part in deltas
        ],
        sse("output_item.done", item=REASONING_ITEM),
    ]
    told = [ReasoningDelta(text, "summary", part, "rs_1") for text, part in deltas]
    assert decode(messages) == [*told, SEALED]


def test_reasoning_without_deltas_comes_by_its_finished_item() -> None:
    assert decode([sse("output_item.done", item=REASONING_ITEM)]) == [
        ReasoningDelta("Hm, so", "summary", 0, "rs_1"),
        ReasoningDelta("yes", "summary", 1, "rs_1"),
        SEALED,
    ]


def test_the_reasoning_itself_is_distinguished_from_its_summary() -> None:
    message = sse("reasoning_text.delta", item_id="rs_1", content_index=2, delta="deep")
    assert decode([message]) == [ReasoningDelta("deep", "text", 2, "rs_1")]


def test_a_tools_output_is_no_text() -> None:
    item = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
    assert decode([sse("output_item.done", item=item)]) == [ToolOutput("call_1", "found")]


# -- ends ------------------------------------------------------------------------------------------

COUNTS = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 33,
    "output_tokens_details": {"reasoning_tokens": 9},
    "total_tokens": 153,
}
USAGE = Usage(120, 33, 153, cached_tokens=64, reasoning_tokens=9)


def test_a_completed_response_gives_its_usage_and_ends_the_turn() -> None:
    message = sse("completed", response={"id": "resp_1", "usage": COUNTS})
    assert decode([message]) == [USAGE, ResponseEnd("resp_1"), TurnEnd("completed")]


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_ends_with_its_reason_and_does_not_fail(reason: str) -> None:
    response = {"incomplete_details": {"reason": reason}, "usage": COUNTS}
    assert decode([sse("incomplete", response=response)]) == [USAGE, TurnEnd(reason)]


def test_a_call_cut_off_by_the_limit_does_not_come_out() -> None:
    begun = sse("output_item.added", item=call_item(name="localSearch", arguments=""))
    cut = sse("incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}})
    assert calls_of([begun, in_pieces()[0], cut]) == []


ERROR = {"code": "rate_limit_exceeded", "message": "Slow down; try again in 20s", "param": "model"}


@pytest.mark.parametrize(
    "message",
    [
        sse("failed", response={"id": "resp_1", "status": "failed", "error": ERROR}),
        {"type": "error", "sequence_number": 3, **ERROR},
        {"type": "error", "sequence_number": 3, "error": ERROR},
    ],
    ids=["response.failed", "error", "error with an error object"],
)
def test_a_failed_response_fails_and_ends_the_turn_once(message: Message) -> None:
    failed, end = decode([message, message, {"type": "error", **ERROR}])
    assert isinstance(failed, Failed)
    assert failed.error == Failure(
        "Slow down; try again in 20s",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        param="model",
        retry_after=20.0,
    )
    assert end == TurnEnd("failed")


def test_done_without_completed_ends_the_turn() -> None:
    unfinished = [message for message in USUAL if message is not COMPLETED]
    events = decode([*unfinished, {"type": "[DONE]"}])
    assert events[-1] == TurnEnd("completed")
    assert calls_of([*unfinished, {"type": "[DONE]"}]) == [("call_1", "localSearch", EXACT)]


def test_nothing_comes_after_completed() -> None:
    late = sse("output_text.delta", delta="late")
    assert decode([*USUAL, late, {"type": "[DONE]"}]) == decode(USUAL)


def test_fragments_of_a_call_carry_the_backends_handle() -> None:
    pieces = [event for event in decode(USUAL) if isinstance(event, ToolCallFragment)]
    assert {piece.key for piece in pieces} == {"fc_1"}
    assert [piece.done for piece in pieces[-2:]] == [True, True]
