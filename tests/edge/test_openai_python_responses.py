"""The OpenAI Python SDK on trio, on the Responses API: helpers, what is kept, and compaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Literal

import openai
import pytest
import trio
from openai import AsyncOpenAI
from openai.types.responses import ParsedResponse, Response, ResponseInputItemParam
from pydantic import BaseModel

from .conftest import KEY
from .relay import Relay

pytestmark = pytest.mark.filterwarnings(
    # At the end of a stream the SDK lets go of its generators without closing them.
    r"ignore:Async generator '(openai|httpx2|httpcore2)\.:ResourceWarning"
)

HELLO: Final = "Hello, wörld 🌍!"
MODEL: Final = "gpt-5"
SOON: Final = 2.0
LONG_ENOUGH: Final = 30.0


class LocalSearch(BaseModel):
    """Looks into the notes."""

    query: str
    n: float | None = None


class ReadNote(BaseModel):
    """Reads one note."""

    path: str


class Guest(BaseModel):
    name: str
    role: Literal["host", "guest"]


class Meeting(BaseModel):
    title: str
    hours: float
    guests: list[Guest]


MEETING: Final = Meeting(
    title="some title", hours=7.5, guests=[Guest(name="some name", role="host")]
)


def tool(name: str, parameters: type[BaseModel]) -> Any:
    """A strict tool, as the Responses API has it."""
    nested: Any = openai.pydantic_function_tool(parameters, name=name)
    return {"type": "function", **nested["function"]}


TOOLS: Final = [tool("localSearch", LocalSearch), tool("readNote", ReadNote)]


@pytest.fixture
async def client(relay: Relay) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=relay.url, api_key=KEY, max_retries=0, timeout=LONG_ENOUGH
    ) as client:
        yield client


def calls(response: Response | ParsedResponse[Any]) -> list[tuple[str, str, Any]]:
    """The calls of a response, with what the SDK made of their arguments."""
    return [
        (item.call_id, item.name, getattr(item, "parsed_arguments", item.arguments))
        for item in response.output
        if item.type == "function_call"
    ]


def ids(response: Response | ParsedResponse[Any]) -> list[Any]:
    return [getattr(item, "id", None) for item in response.output]


# -- answers ---------------------------------------------------------------------------------------


async def test_an_answer_comes_whole(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input="TEXT")
    assert (response.output_text, response.status, response.error) == (HELLO, "completed", None)
    assert response.usage is not None
    counts = (response.usage.input_tokens, response.usage.output_tokens)
    assert (*counts, response.usage.total_tokens) == (120, 33, 153)
    assert response.usage.input_tokens_details.cached_tokens == 64
    assert response.usage.output_tokens_details.reasoning_tokens == 9


async def test_a_plain_stream_ends_with_what_would_have_come_whole(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="TEXT", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == HELLO
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == HELLO
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert last.response.output == done


async def test_the_stream_helper_reports_text_and_its_end(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="TEXT") as stream:
        snapshots = [
            event.snapshot async for event in stream if event.type == "response.output_text.delta"
        ]
        response = await stream.get_final_response()
    assert snapshots[-1] == response.output_text == HELLO


async def test_silence_is_broken_without_a_word_of_it_in_the_answer(
    client: AsyncOpenAI, relay: Relay
) -> None:
    mark = relay.mark()
    async with client.responses.stream(model=MODEL, input="PAUSE") as stream:
        response = await stream.get_final_response()
    assert response.output_text == "Wait for it."
    (told,) = relay.since(mark)
    assert "keepalive" in [event["type"] for event in told.events]


async def test_the_stream_helper_parses_three_strict_calls(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="BURST", tools=TOOLS) as stream:
        response = await stream.get_final_response()
    assert response.output_text == "On it."
    assert calls(response) == [
        ("call_a", "localSearch", {"query": "a"}),
        ("call_b", "readNote", {"path": "b.md"}),
        ("call_c", "localSearch", {"query": "a"}),
    ]
    own = [item.id for item in response.output if item.type == "function_call"]
    assert len({*own, "call_a", "call_b", "call_c"}) == 6


async def test_a_call_has_the_model_s_very_words(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model=MODEL, input="ONECALL", tools=TOOLS)
    assert response.output_text == "Let me look."
    assert calls(response) == [("call_a", "localSearch", '{"query": "x",  "n": 1.0}')]


async def test_forms_are_filled_in_streamed_or_not(client: AsyncOpenAI) -> None:
    question: Any = {"model": MODEL, "input": "When do we meet?", "text_format": Meeting}
    assert (await client.responses.parse(**question)).output_parsed == MEETING
    async with client.responses.stream(**question) as stream:
        assert (await stream.get_final_response()).output_parsed == MEETING


async def test_an_answer_that_was_cut_short_says_why(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="HALF") as stream:
        kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.incomplete"
    response = await client.responses.create(model=MODEL, input="HALF")
    assert (response.output_text, response.status) == ("Half", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


# -- conversations ---------------------------------------------------------------------------------


async def test_a_tool_runs_and_the_model_answers_with_what_it_said(client: AsyncOpenAI) -> None:
    """The client sends everything again: the call as it came, and what became of it."""
    question: Any = {"type": "message", "role": "user", "content": "Please use readNote"}
    async with client.responses.stream(model=MODEL, input=[question], tools=TOOLS) as stream:
        first = await stream.get_final_response()
    ((call_id, name, _),) = calls(first)
    assert name == "readNote"
    output: Any = {"type": "function_call_output", "call_id": call_id, "output": "note"}
    items: list[Any] = [item.model_dump(exclude={"parsed_arguments"}) for item in first.output]
    second = await client.responses.create(
        model=MODEL, input=[question, *items, output], tools=TOOLS
    )
    assert second.output_text == "The tool said: note"


async def test_a_conversation_goes_on_from_the_response_before(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="ONECALL", tools=TOOLS)
    output: Any = {"type": "function_call_output", "call_id": "call_a", "output": "three pears"}
    second = await client.responses.create(
        model=MODEL, previous_response_id=first.id, input=[output], tools=TOOLS
    )
    assert second.output_text == "The tool said: three pears"
    third = await client.responses.create(
        model=MODEL, previous_response_id=second.id, input="RECALL pears"
    )
    assert third.output_text == "assistant: The tool said: three pears"
    assert third.previous_response_id == second.id


async def test_a_streamed_response_is_gone_on_from_as_well(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="I like plums") as stream:
        first = await stream.get_final_response()
    second = await client.responses.create(
        model=MODEL, previous_response_id=first.id, input="RECALL plums"
    )
    assert second.output_text == "user: I like plums\nassistant: You said: I like plums"


async def test_an_item_is_referred_to_by_its_id(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="I like plums")
    item_id = first.output[0].id
    assert item_id is not None
    reference: ResponseInputItemParam = {"type": "item_reference", "id": item_id}
    question: ResponseInputItemParam = {"role": "user", "content": "RECALL plums"}
    second = await client.responses.create(model=MODEL, input=[reference, question])
    assert second.output_text == "assistant: You said: I like plums"


async def test_what_was_not_kept_cannot_be_gone_on_from(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="TEXT", store=False)
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model=MODEL, previous_response_id=first.id, input="TEXT")
    assert first.id in unknown.value.message
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    reference: ResponseInputItemParam = {"type": "item_reference", "id": "msg_nobodys"}
    with pytest.raises(openai.BadRequestError, match="msg_nobodys"):
        await client.responses.create(model=MODEL, input=[reference])


@pytest.mark.parametrize("by_id", [False, True], ids=["by items", "by id"])
async def test_a_compacted_conversation_goes_on_from_its_summary(
    client: AsyncOpenAI, *, by_id: bool
) -> None:
    first = await client.responses.create(model=MODEL, input="I like plums")
    said: Any = [{"role": "user", "content": "I like plums"}, *first.output]
    what: Any = {"previous_response_id": first.id} if by_id else {"input": said}
    compacted = await client.responses.compact(model=MODEL, **what)
    assert compacted.object == "response.compaction"
    assert compacted.usage.total_tokens == 153
    (sealed,) = (item for item in compacted.output if item.type == "compaction")
    assert "plums" not in sealed.encrypted_content
    items: list[Any] = [item.model_dump(exclude_none=True) for item in compacted.output]
    question: Any = {"role": "user", "content": "RECALL said:"}
    second = await client.responses.create(model=MODEL, input=[*items, question])
    assert "You said: " in second.output_text
    assert "assistant: You said: I like plums" not in second.output_text


async def test_a_summary_that_was_altered_is_refused(client: AsyncOpenAI) -> None:
    forged: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAnobodys"}
    question: ResponseInputItemParam = {"role": "user", "content": "What do I like?"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input=[forged, question])
    assert "encrypted_content" in str(refused.value.param)


# -- what is kept ----------------------------------------------------------------------------------


async def test_a_response_is_kept_with_its_input_until_it_is_deleted(client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model=MODEL, input="TEXT", instructions="Be kind.", metadata={"colour": "plum"}
    )
    kept = await client.responses.retrieve(made.id)
    assert kept.model_dump() == made.model_dump()
    assert (kept.instructions, kept.metadata) == ("Be kind.", {"colour": "plum"})
    items = [item async for item in client.responses.input_items.list(made.id)]
    assert [item.type for item in items] == ["message"]
    await client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as missing:
            await gone(made.id)
        assert missing.value.request_id


async def test_a_streamed_response_is_kept_as_it_ended(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="BURST", tools=TOOLS) as stream:
        made = await stream.get_final_response()
    kept = await client.responses.retrieve(made.id)
    assert ids(kept) == ids(made)
    assert kept.usage == made.usage


# -- in the background -----------------------------------------------------------------------------


async def until_done(client: AsyncOpenAI, response: Response) -> Response:
    with trio.fail_after(LONG_ENOUGH):
        while response.status in ("queued", "in_progress"):
            await trio.sleep(0.05)
            response = await client.responses.retrieve(response.id)
    return response


async def test_a_response_is_made_in_the_background_and_fetched(client: AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="TEXT", background=True)
    assert begun.background is True
    assert begun.status in ("queued", "in_progress")
    done = await until_done(client, begun)
    assert (done.status, done.output_text) == ("completed", HELLO)


async def test_a_response_in_the_background_is_cancelled(client: AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="HANG", background=True)
    cancelled = await client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    kept = await client.responses.retrieve(begun.id)
    assert kept.status == "cancelled"


async def test_many_that_were_cancelled_leave_room_for_one_that_stays(client: AsyncOpenAI) -> None:
    with trio.fail_after(LONG_ENOUGH):
        for _ in range(5):
            begun = await client.responses.create(model=MODEL, input="HANG", background=True)
            await client.responses.cancel(begun.id)
        response = await client.responses.create(model=MODEL, input="TEXT")
    assert response.output_text == HELLO


async def test_only_what_runs_in_the_background_can_be_cancelled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="TEXT")
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_nobodys")


# -- errors ----------------------------------------------------------------------------------------

Attempt = Callable[[AsyncOpenAI], Awaitable[Any]]


def asks(words: str, **more: Any) -> Attempt:
    async def attempt(client: Any) -> object:  # a field that is wrong has no type
        return await client.responses.create(model=MODEL, input=words, **more)

    return attempt


ERRORS: Final[dict[str, tuple[Attempt, type[openai.APIStatusError], str, str | None]]] = {
    "a wrong field": (
        asks("TEXT", tools="hammer"),
        openai.BadRequestError,
        "invalid_request_error",
        "tools",
    ),
    "a wrong key": (
        lambda client: asks("TEXT")(client.with_options(api_key="sk-nobodys")),
        openai.AuthenticationError,
        "invalid_api_key",
        None,
    ),
    "an unknown response": (
        lambda client: client.responses.retrieve("resp_nobodys"),
        openai.NotFoundError,
        "not_found",
        None,
    ),
    "the upstream's limit": (asks("E429"), openai.RateLimitError, "insufficient_quota", None),
    "the upstream's limit, streamed": (
        asks("E429", stream=True),
        openai.RateLimitError,
        "insufficient_quota",
        None,
    ),
    "the upstream's refusal": (asks("E400"), openai.BadRequestError, "invalid_request_error", None),
    "the upstream's failure": (asks("E500"), openai.InternalServerError, "server_error", None),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_is_of_its_own_class(client: AsyncOpenAI, name: str) -> None:
    attempt, kind, code, param = ERRORS[name]
    with pytest.raises(kind) as raised:
        await attempt(client)
    assert (raised.value.code, raised.value.param) == (code, param)
    assert raised.value.request_id


async def test_an_error_in_the_middle_of_a_stream_comes_after_its_words(
    client: AsyncOpenAI,
) -> None:
    heard = ""
    last: Any = None

    async def listen() -> None:
        nonlocal heard, last
        stream = await client.responses.create(model=MODEL, input="CUT", stream=True)
        async for event in stream:
            last = event
            if event.type == "response.output_text.delta":
                heard += event.delta

    with pytest.raises(openai.APIError) as raised:
        await listen()
    assert heard == "Hello par"
    assert last.type == "response.failed"
    assert last.response.error.code == "server_error"
    assert raised.value.message == last.response.error.message


# -- giving up -------------------------------------------------------------------------------------


async def left_in_the_middle(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="HANG", stream=True)
    async with stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                return


async def left_without_a_stream(client: AsyncOpenAI) -> None:
    with trio.move_on_after(0.2):
        await client.responses.create(model=MODEL, input="HANG")


@pytest.mark.parametrize("leave", [left_in_the_middle, left_without_a_stream])
async def test_many_who_give_up_leave_room_for_one_who_stays(
    client: AsyncOpenAI, leave: Callable[[AsyncOpenAI], Awaitable[None]]
) -> None:
    with trio.fail_after(LONG_ENOUGH):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(leave, client)
        response = await client.responses.create(model=MODEL, input="TEXT")
    assert response.output_text == HELLO
