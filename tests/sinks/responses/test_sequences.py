"""The Responses API on the wire: the literal sequence of every kind of turn."""

from __future__ import annotations

import pytest

from pipeline.events import (
    Event,
    ReasoningDelta,
    ReasoningItem,
    ResponseEnd,
    TextDelta,
    ToolCall,
    ToolOutput,
    Usage,
)
from sinks.responses import ResponsesSse
from tests.support.responses_turns import (
    END,
    USAGE,
    middle,
    options,
    stream,
    text_item,
)


def test_a_text_answer_byte_by_byte() -> None:
    data = ResponsesSse(options()).feed([TextDelta("Hi"), TextDelta(' "wörld"\n'), END])
    frames = data.decode().split("\n\n")
    place = '"item_id":"msg_1","output_index":0,"content_index":0'
    part = '{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}'
    whole = part % 'Hi \\"wörld\\"\\n'
    assert frames[2:9] == [
        (
            'event: response.output_item.added\ndata: {"type":"response.output_item.added",'
            '"sequence_number":2,"output_index":0,"item":{"id":"msg_1","type":"message",'
            '"status":"in_progress","role":"assistant","content":[]}}'
        ),
        (
            'event: response.content_part.added\ndata: {"type":"response.content_part.added",'
            f'"sequence_number":3,{place},"part":{part % ""}}}'
        ),
        (
            'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            f'"sequence_number":4,{place},"delta":"Hi","logprobs":[]}}'
        ),
        (
            'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            f'"sequence_number":5,{place},"delta":" \\"wörld\\"\\n","logprobs":[]}}'
        ),
        (
            'event: response.output_text.done\ndata: {"type":"response.output_text.done",'
            f'"sequence_number":6,{place},"text":"Hi \\"wörld\\"\\n","logprobs":[]}}'
        ),
        (
            'event: response.content_part.done\ndata: {"type":"response.content_part.done",'
            f'"sequence_number":7,{place},"part":{whole}}}'
        ),
        (
            'event: response.output_item.done\ndata: {"type":"response.output_item.done",'
            '"sequence_number":8,"output_index":0,"item":{"id":"msg_1","type":"message",'
            f'"status":"completed","role":"assistant","content":[{whole}]}}}}'
        ),
    ]
    assert [frame.partition("\n")[0] for frame in frames] == [
        "event: response.created",
        "event: response.in_progress",
        *(frame.partition("\n")[0] for frame in frames[2:9]),
        "event: response.completed",
        "data: [DONE]",
        "",
    ]


def test_an_id_with_a_percent_sign_stands_in_a_text_as_it_is() -> None:
    found = stream(TextDelta("100 %d, "), TextDelta("50 %b"), END, new_id="{}_%b".format)
    deltas = [event for event in found if event["type"].endswith("text.delta")]
    assert [delta["delta"] for delta in deltas] == ["100 %d, ", "50 %b"]
    assert {delta["item_id"] for delta in deltas} == {"msg_%b"}


def test_the_response_object_has_every_field_and_a_default_for_each() -> None:
    assert stream(USAGE, END)[0]["response"] == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5",
        "previous_response_id": None,
        "instructions": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": {"effort": None, "summary": None},
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        "user": None,
        "output": [],
        "usage": None,
    }


def test_the_end_tells_usage_time_and_output() -> None:
    last = stream(TextDelta("a"), USAGE, Usage(1, 2, 3), END)[-1]["response"]
    assert (last["status"], last["completed_at"]) == ("completed", 1700000009)
    assert [item["content"][0]["text"] for item in last["output"]] == ["a"]
    assert last["usage"] == {
        "input_tokens": 121,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 35,
        "output_tokens_details": {"reasoning_tokens": 9},
        "total_tokens": 156,
    }
    assert stream(TextDelta("a"), END)[-1]["response"]["usage"] is None


SEQUENCES: dict[str, tuple[list[Event], list[str]]] = {
    "nothing": ([END], []),
    "text": ([TextDelta("a"), TextDelta("b"), END], text_item(1, "ab", "a", "b")),
    "empty pieces of text": ([TextDelta(""), ReasoningDelta(""), END], []),
    "a call": (
        [ToolCall("call_a", "search", "{}"), END],
        [
            (
                "output_item.added {'id':'fc_1','type':'function_call','status':'in_progress',"
                "'call_id':'call_a','name':'search','arguments':''}"
            ),
            "function_call_arguments.delta fc_1 {}",
            "function_call_arguments.done fc_1 search {}",
            (
                "output_item.done {'id':'fc_1','type':'function_call','status':'completed',"
                "'call_id':'call_a','name':'search','arguments':'{}'}"
            ),
        ],
    ),
    "text, a call, text": (
        [TextDelta("a"), ToolCall("call_a", "crm__find", "[]"), TextDelta("b"), END],
        [
            *text_item(1, "a"),
            (
                "output_item.added {'id':'fc_2','type':'function_call','status':'in_progress',"
                "'call_id':'call_a','name':'find','arguments':'','namespace':'crm'}"
            ),
            "function_call_arguments.delta fc_2 []",
            "function_call_arguments.done fc_2 find []",
            (
                "output_item.done {'id':'fc_2','type':'function_call','status':'completed',"
                "'call_id':'call_a','name':'find','arguments':'[]','namespace':'crm'}"
            ),
            *text_item(3, "b"),
        ],
    ),
    "a call of free text in a namespace": (
        [ToolCall("call_a", "box__run", '{"input":"ls -l"}'), END],
        [
            (
                "output_item.added {'id':'ctc_1','type':'custom_tool_call','status':'in_progress',"
                "'call_id':'call_a','name':'run','input':'','namespace':'box'}"
            ),
            "custom_tool_call_input.delta ctc_1 ls -l",
            "custom_tool_call_input.done ctc_1 ls -l",
            (
                "output_item.done {'id':'ctc_1','type':'custom_tool_call','status':'completed',"
                "'call_id':'call_a','name':'run','input':'ls -l','namespace':'box'}"
            ),
        ],
    ),
    "a summary in two parts, then text": (
        [
            ReasoningDelta("A", item_id="rs_x"),
            ReasoningDelta("a", item_id="rs_x"),
            ReasoningDelta("B", part=1, item_id="rs_x"),
            ReasoningItem("rs_x", ("Aa", "B"), "sealed"),
            TextDelta("42"),
            END,
        ],
        [
            "output_item.added {'id':'rs_x','type':'reasoning','summary':[]}",
            "reasoning_summary_part.added rs_x 0 {'type':'summary_text','text':''}",
            "reasoning_summary_text.delta rs_x 0 A",
            "reasoning_summary_text.delta rs_x 0 a",
            "reasoning_summary_text.done rs_x 0 Aa",
            "reasoning_summary_part.done rs_x 0 {'type':'summary_text','text':'Aa'}",
            "reasoning_summary_part.added rs_x 1 {'type':'summary_text','text':''}",
            "reasoning_summary_text.delta rs_x 1 B",
            "reasoning_summary_text.done rs_x 1 B",
            "reasoning_summary_part.done rs_x 1 {'type':'summary_text','text':'B'}",
            (
                "output_item.done {'id':'rs_x','type':'reasoning','summary':"
                "[{'type':'summary_text','text':'Aa'},{'type':'summary_text','text':'B'}]}"
            ),
            *text_item(1, "42"),
        ],
    ),
    "the reasoning itself": (
        [ReasoningDelta("hm", "text"), END],
        [
            "output_item.added {'id':'rs_1','type':'reasoning','summary':[]}",
            "content_part.added rs_1 0 {'type':'reasoning_text','text':''}",
            "reasoning_text.delta rs_1 0 hm",
            "reasoning_text.done rs_1 0 hm",
            "content_part.done rs_1 0 {'type':'reasoning_text','text':'hm'}",
            (
                "output_item.done {'id':'rs_1','type':'reasoning','summary':[],"
                "'content':[{'type':'reasoning_text','text':'hm'}]}"
            ),
        ],
    ),
    "a summary that was not streamed": (
        [ReasoningItem("rs_x", ("A",)), END],
        [
            "output_item.added {'id':'rs_x','type':'reasoning','summary':[]}",
            "reasoning_summary_part.added rs_x 0 {'type':'summary_text','text':''}",
            "reasoning_summary_text.delta rs_x 0 A",
            "reasoning_summary_text.done rs_x 0 A",
            "reasoning_summary_part.done rs_x 0 {'type':'summary_text','text':'A'}",
            (
                "output_item.done {'id':'rs_x','type':'reasoning','summary':"
                "[{'type':'summary_text','text':'A'}]}"
            ),
        ],
    ),
    "reasoning without a word": (
        [ReasoningItem("rs_x"), END],
        [
            "output_item.added {'id':'rs_x','type':'reasoning','summary':[]}",
            "output_item.done {'id':'rs_x','type':'reasoning','summary':[]}",
        ],
    ),
    "events that are not for clients": (
        [ToolOutput("call_a", "secret"), ResponseEnd(), END],
        [],
    ),
}


@pytest.mark.parametrize("case", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_a_turn_is_this_sequence(case: tuple[list[Event], list[str]]) -> None:
    events, expected = case
    assert middle(*events) == expected
