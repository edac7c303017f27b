"""Laws of the Responses sinks, over whatever the stages let through."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.assembly import Settings, chat_options, recipe
from pipeline.errors import ProxyError
from pipeline.events import Event, ReasoningDelta, ReasoningItem, TextDelta, ToolCall, TurnEnd
from pipeline.turn import Tool, Turn
from sinks.chat import ChatJson
from sinks.responses import ResponsesJson, ResponsesOptions, ResponsesSse, numbered_ids
from tests.frame.test_laws import PIECES, SETTINGS, timed
from tests.support.responses_automaton import check_stream
from tests.support.responses_turns import DOWN

TOOLS = {
    "search": Tool("search"),
    "read": Tool("read", kind="custom", namespace="vault", own_name="get"),
}
TURN = Turn(tools=tuple(TOOLS.values()))
THOUGHTS = st.builds(
    ReasoningDelta,
    PIECES,
    st.sampled_from(["summary", "text"]),
    st.integers(0, 2),
    st.sampled_from(["", "rs_1", "rs_2"]),
)
SEALS = st.builds(
    ReasoningItem,
    st.sampled_from(["", "rs_1", "rs_2"]),
    st.lists(PIECES, max_size=2).map(tuple),
    st.none() | st.just("sealed"),
)
OPTIONS = st.builds(
    ResponsesOptions,
    tools=st.sampled_from([{}, TOOLS]),
    write_xml=st.booleans(),
    reasoning=st.booleans(),
    include_encrypted=st.booleans(),
    now=st.just(lambda: 9),
)
CUTS = st.lists(st.integers(0, 25), max_size=4)


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """What the stages make of a random turn with much reasoning in it."""
    events = draw(timed())
    for thought in draw(st.lists(THOUGHTS | SEALS, max_size=6)):
        events.insert(draw(st.integers(0, len(events))), evolve(thought, at=0.0))
    ordered = [evolve(event, at=float(at)) for at, event in enumerate(events)]
    return recipe(draw(SETTINGS)).process(ordered, TURN)


def streamed(events: list[Event], options: ResponsesOptions, cuts: list[int]) -> bytes | None:
    """The bytes of a turn fed in pieces; None if it was refused before the first."""
    encoder = ResponsesSse(evolve(options, new_id=numbered_ids()))
    edges = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    try:
        return b"".join(encoder.feed(events[a:b]) for a, b in pairwise(edges))
    except ProxyError:
        return None


def whole(events: list[Event], options: ResponsesOptions) -> dict[str, Any] | None:
    sink = ResponsesJson(evolve(options, new_id=numbered_ids()))
    sink.feed(events)
    try:
        return sink.result().body
    except ProxyError:
        return None


@settings(max_examples=200)
@given(turns(), OPTIONS)
def test_whatever_the_stages_let_through_is_a_legal_stream(
    events: list[Event], options: ResponsesOptions
) -> None:
    data = streamed(events, options, [])
    if data is not None:
        check_stream(data)


@settings(max_examples=200)
@given(turns(), OPTIONS, CUTS)
def test_the_split_into_bursts_changes_nothing(
    events: list[Event], options: ResponsesOptions, cuts: list[int]
) -> None:
    assert streamed(events, options, cuts) == streamed(events, options, [])


@settings(max_examples=200)
@given(turns(), OPTIONS)
def test_the_stream_ends_with_the_body(events: list[Event], options: ResponsesOptions) -> None:
    data, body = streamed(events, options, []), whole(events, options)
    if data is None or (response := check_stream(data))["status"] == "failed":
        assert body is None
    else:
        assert response == body


@settings(max_examples=200)
@given(turns(), OPTIONS, st.integers(0, 25))
def test_a_keepalive_anywhere_is_legal_and_changes_nothing_else(
    events: list[Event], options: ResponsesOptions, place: int
) -> None:
    encoder = ResponsesSse(evolve(options, new_id=numbered_ids()))
    place = min(place, len(events))
    try:
        early = encoder.feed(events[:place])
    except ProxyError:
        return
    response = check_stream(early + encoder.keepalive() + encoder.feed(events[place:]))
    body = whole(events, options)
    assert response == body if body is not None else response["status"] == "failed"


@settings(max_examples=200)
@given(turns(), OPTIONS, st.integers(0, 25))
def test_a_stream_that_is_failed_anywhere_from_outside_ends_legally(
    events: list[Event], options: ResponsesOptions, place: int
) -> None:
    encoder = ResponsesSse(evolve(options, new_id=numbered_ids()))
    try:
        early = encoder.feed(events[: min(place, len(events) - 1)])
    except ProxyError:
        return
    response = check_stream(early + encoder.fail(DOWN.error))
    assert response["status"] == ("completed" if encoder.answer.calls else "failed")


# -- chat and responses --------------------------------------------------------------------------


def texts(output: list[dict[str, Any]], kind: str, *fields: str) -> str:
    """All the text in some fields of the items of a kind; line breaks only keep parts apart."""
    parts = [
        part["text"]
        for item in output
        if item["type"] == kind
        for field in fields
        for part in item.get(field, [])
    ]
    return "".join(parts).replace("\n", "")


@st.composite
def written_alike(draw: st.DrawFn) -> list[Event]:
    """A turn whose finished reasoning items say nothing that was not streamed before."""
    events = draw(turns())
    return [evolve(e, summary=()) if isinstance(e, ReasoningItem) else e for e in events]


@settings(max_examples=300)
@given(written_alike(), st.booleans(), st.booleans())
def test_chat_and_responses_write_the_same_of_a_turn(
    events: list[Event], write_xml: bool, reasoning: bool
) -> None:
    chosen = Settings(
        output_mode="obsidian-xml" if write_xml else "auto", reasoning_content=reasoning
    )
    chat = ChatJson(chat_options(chosen, TURN))
    chat.feed(events)
    body = whole(events, ResponsesOptions(write_xml=write_xml, reasoning=reasoning))
    try:
        answer: dict[str, Any] | None = chat.result().body
    except ProxyError:
        answer = None
    assert (answer is None) == (body is None)
    if answer is None or body is None:
        return
    (choice,) = answer["choices"]
    message, output = choice["message"], body["output"]
    assert texts(output, "message", "content") == (message["content"] or "").replace("\n", "")
    thoughts = message.get("reasoning_content", "").replace("\n", "")
    assert sorted(texts(output, "reasoning", "summary", "content")) == sorted(thoughts)
    calls = [(c["id"], *c["function"].values()) for c in message.get("tool_calls", [])]
    assert [
        (item["call_id"], item["name"], item["arguments"])
        for item in output
        if item["type"] == "function_call"
    ] == calls
    status = (
        "incomplete" if choice["finish_reason"] in ("length", "content_filter") else "completed"
    )
    assert body["status"] == status
    assert _counts(body["usage"]) == _counts(answer["usage"])


def _counts(usage: dict[str, Any] | None) -> list[int] | None:
    """The numbers of either API, in one order."""
    if usage is None:
        return None
    first, second = ("prompt", "completion") if "prompt_tokens" in usage else ("input", "output")
    return [
        usage[f"{first}_tokens"],
        usage[f"{second}_tokens"],
        usage["total_tokens"],
        usage[f"{first}_tokens_details"]["cached_tokens"],
        usage[f"{second}_tokens_details"]["reasoning_tokens"],
    ]


def test_the_random_turns_hold_what_the_laws_are_about() -> None:
    kinds: set[type] = set()

    @settings(max_examples=200, database=None)
    @given(turns())
    def look(events: list[Event]) -> None:
        kinds.update(type(event) for event in events)

    look()
    assert kinds >= {TextDelta, ReasoningDelta, ReasoningItem, ToolCall, TurnEnd}
