"""The OpenAI Python SDK on trio: answers whole and streamed, its helpers, its errors, giving up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Literal

import openai
import pytest
import trio
from openai import AsyncOpenAI
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
)
from pydantic import BaseModel

from .conftest import Server

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


TOOLS: Final = [
    openai.pydantic_function_tool(LocalSearch, name="localSearch"),
    openai.pydantic_function_tool(ReadNote, name="readNote"),
]
MEETING: Final = Meeting(
    title="some title", hours=7.5, guests=[Guest(name="some name", role="host")]
)
THREE: Final = [
    ("call_a", "localSearch", LocalSearch(query="a")),
    ("call_b", "readNote", ReadNote(path="b.md")),
    ("call_c", "localSearch", LocalSearch(query="a")),
]


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.url, api_key=server.key, max_retries=0, timeout=LONG_ENOUGH
    ) as client:
        yield client


def user(words: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": words}]


def content(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


# -- answers ---------------------------------------------------------------------------------------


async def test_an_answer_comes_whole(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model=MODEL, messages=user("TEXT"))
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == (HELLO, "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (120, 33)
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 64


async def test_an_answer_comes_in_chunks_that_belong_together(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=user("TEXT"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *said, last, usage = chunks
    assert "".join(map(content, said)) == HELLO
    assert [choice.finish_reason for choice in last.choices] == ["stop"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 153
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert said[0].choices[0].delta.role == "assistant"


async def test_a_call_comes_whole_with_the_model_s_very_words(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model=MODEL, messages=user("ONECALL"), tools=TOOLS
    )
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Let me look.", "tool_calls")
    (call,) = choice.message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.id, call.function.name) == ("call_a", "localSearch")
    assert call.function.arguments == '{"query": "x",  "n": 1.0}'


async def test_the_stream_helper_reports_text_and_its_end(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=user("TEXT")) as stream:
        events = [event async for event in stream]
        completion = await stream.get_final_completion()
    kinds = [event.type for event in events if event.type != "chunk"]
    assert kinds == ["content.delta", "content.delta", "content.delta", "content.done"]
    assert completion.choices[0].message.content == HELLO


async def test_the_stream_helper_parses_three_strict_calls(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=user("BURST"), tools=TOOLS
    ) as stream:
        events = [event async for event in stream]
        completion = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name) for event in done] == [
        (0, "localSearch"),
        (1, "readNote"),
        (2, "localSearch"),
    ]
    (choice,) = completion.choices
    calls = choice.message.tool_calls or ()
    told = [(call.id, call.function.name, call.function.parsed_arguments) for call in calls]
    assert told == THREE
    assert (choice.message.content, choice.finish_reason) == ("On it.", "tool_calls")


@pytest.mark.parametrize("words", ["Please use readNote", "BURST"])
async def test_the_results_of_tools_reach_the_model(client: AsyncOpenAI, words: str) -> None:
    messages = user(words)
    first = await client.chat.completions.parse(model=MODEL, messages=messages, tools=TOOLS)
    message = first.choices[0].message
    messages.append(message.to_dict())  # type: ignore[arg-type]  # as the SDK's guide does it
    for call in message.tool_calls or ():
        result = f"{call.function.name} of {call.id}"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    (choice,) = second.choices
    assert choice.message.content == f"The tool said: {messages[-1].get('content')}"
    assert choice.finish_reason == "stop"


async def test_a_form_is_filled_in(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.parse(
        model=MODEL, messages=user("When do we meet?"), response_format=Meeting
    )
    assert completion.choices[0].message.parsed == MEETING


async def test_a_form_is_filled_in_piece_by_piece(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=user("When do we meet?"), response_format=Meeting
    ) as stream:
        parsed = [event.parsed async for event in stream if event.type == "content.done"]
    assert parsed == [MEETING]


async def test_an_answer_that_was_cut_short_says_so(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model=MODEL, messages=user("HALF"))
    assert completion.choices[0].finish_reason == "length"
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(model=MODEL, messages=user("HALF"))


async def test_a_listed_model_can_be_asked_for_by_its_name(client: AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    assert names
    assert (await client.models.retrieve(names[0])).id == names[0]


# -- errors ----------------------------------------------------------------------------------------

Attempt = Callable[[AsyncOpenAI], Awaitable[Any]]


def asks(words: str, **more: Any) -> Attempt:
    async def attempt(client: Any) -> object:  # a field that is wrong has no type
        return await client.chat.completions.create(model=MODEL, messages=user(words), **more)

    return attempt


ERRORS: Final[dict[str, tuple[Attempt, type[openai.APIStatusError], str, str | None]]] = {
    "a wrong field": (
        asks("TEXT", tools="hammer"),
        openai.BadRequestError,
        "invalid_request_error",
        "tools",
    ),
    "a wrong key": (
        lambda client: client.with_options(api_key="sk-nobodys").models.list(),
        openai.AuthenticationError,
        "invalid_api_key",
        None,
    ),
    "an unknown model": (
        lambda client: client.models.retrieve("no-such-model"),
        openai.NotFoundError,
        "model_not_found",
        "model",
    ),
    "an unknown route": (
        lambda client: client.post("/nowhere", cast_to=object),
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
    assert raised.value.response.headers["content-type"].startswith("application/json")


async def test_an_error_in_the_middle_of_a_stream_comes_after_its_words(
    client: AsyncOpenAI,
) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=user("CUT"), stream=True)
    heard = ""

    async def listen() -> None:
        nonlocal heard
        async for chunk in stream:
            heard += content(chunk)

    with pytest.raises(openai.APIError) as raised:
        await listen()
    assert heard == "Hello par"
    assert raised.value.code == "upstream_error"
    assert not isinstance(raised.value, openai.APIStatusError)  # the status was sent long before


# -- giving up -------------------------------------------------------------------------------------


async def left_in_the_middle(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=user("HANG"), stream=True)
    async with stream:
        async for chunk in stream:
            if content(chunk):
                return


async def left_before_the_first_byte(client: AsyncOpenAI) -> None:
    with trio.move_on_after(0.2):
        await client.chat.completions.create(model=MODEL, messages=user("SILENT"), stream=True)


async def left_without_a_stream(client: AsyncOpenAI) -> None:
    with trio.move_on_after(0.2):
        await client.chat.completions.create(model=MODEL, messages=user("HANG"))


@pytest.mark.parametrize(
    "leave", [left_in_the_middle, left_before_the_first_byte, left_without_a_stream]
)
async def test_who_gives_up_is_free_at_once_and_the_next_question_is_answered(
    client: AsyncOpenAI, leave: Callable[[AsyncOpenAI], Awaitable[None]]
) -> None:
    with trio.fail_after(SOON):
        await leave(client)
    with trio.fail_after(LONG_ENOUGH):
        completion = await client.chat.completions.create(model=MODEL, messages=user("TEXT"))
    assert completion.choices[0].message.content == HELLO


async def test_many_who_give_up_leave_room_for_one_who_stays(client: AsyncOpenAI) -> None:
    with trio.fail_after(LONG_ENOUGH):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(left_in_the_middle, client)
        completion = await client.chat.completions.create(model=MODEL, messages=user("TEXT"))
    assert completion.choices[0].message.content == HELLO
