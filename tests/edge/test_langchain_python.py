"""LangChain's Python client on both APIs; its plain interface runs in a thread beside trio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import openai
import pytest
import trio
from attrs import frozen
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from .conftest import KEY, Server
from .relay import Relay

HELLO: Final = "Hello, wörld 🌍!"
LONG_ENOUGH: Final = 30.0
SOON: Final = 2.0

T = TypeVar("T")


@tool
def localSearch(query: str, n: float | None = None) -> str:  # noqa: N802
    """Looks into the notes."""
    return f"found {query}" if n is None else f"found {query} {n} times"


@tool
def readNote(path: str) -> str:  # noqa: N802
    """Reads one note."""
    return f"note {path}"


class Guest(BaseModel):
    name: str
    role: Literal["host", "guest"]


class Meeting(BaseModel):
    """A meeting of several people."""

    title: str
    hours: float
    guests: list[Guest]


TOOLS: Final[dict[str, BaseTool]] = {"localSearch": localSearch, "readNote": readNote}
MEETING: Final = Meeting(
    title="some title", hours=7.5, guests=[Guest(name="some name", role="host")]
)


async def in_a_thread(work: Callable[[], T]) -> T:
    with trio.fail_after(LONG_ENOUGH):
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


@pytest.fixture(params=["chat", "responses"])
def chat(request: pytest.FixtureRequest, relay: Relay) -> ChatOpenAI:
    return ChatOpenAI(
        model="gpt-5",
        base_url=relay.url,
        api_key=SecretStr(KEY),
        use_responses_api=request.param == "responses",
        stream_usage=True,
        max_retries=0,
        timeout=LONG_ENOUGH,
    )


@frozen
class Heard:
    """What a stream came to: the pieces put together, and how many had words in them."""

    message: AIMessageChunk
    pieces: int

    @property
    def calls(self) -> list[tuple[str | None, str, dict[str, Any]]]:
        return [(call["id"], call["name"], call["args"]) for call in self.message.tool_calls]


def finish(message: AIMessage) -> str:
    """How an answer ended; the Responses API has no word of its own for calls."""
    metadata: dict[str, Any] = message.response_metadata
    if "finish_reason" in metadata:
        return str(metadata["finish_reason"])
    assert metadata["status"] == "completed"
    return "tool_calls" if message.tool_calls else "stop"


def listen(chat: ChatOpenAI, said: list[AnyMessage], *, tools: bool = True) -> Heard:
    speaker: Any = chat  # its own annotations are half unknown
    if tools:
        speaker = speaker.bind_tools(list(TOOLS.values()), strict=True)
    chunks: list[AIMessageChunk] = list(speaker.stream(said))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return Heard(whole, sum(bool(chunk.text) for chunk in chunks))


async def test_text_arrives_in_pieces_with_its_count_of_tokens(chat: ChatOpenAI) -> None:
    heard = await in_a_thread(lambda: listen(chat, [HumanMessage("TEXT")], tools=False))
    assert (heard.message.text, heard.calls, finish(heard.message)) == (HELLO, [], "stop")
    assert heard.pieces > 1
    assert heard.message.usage_metadata is not None
    assert heard.message.usage_metadata["total_tokens"] == 153


async def test_silence_is_broken_without_a_word_of_it_in_the_answer(chat: ChatOpenAI) -> None:
    heard = await in_a_thread(lambda: listen(chat, [HumanMessage("PAUSE")], tools=False))
    assert (heard.message.text, finish(heard.message)) == ("Wait for it.", "stop")


async def test_text_arrives_at_once_where_no_stream_is_asked_for(chat: ChatOpenAI) -> None:
    message = await in_a_thread(lambda: chat.invoke("TEXT"))
    assert (message.text, message.tool_calls) == (HELLO, [])
    assert finish(message) == "stop"


async def test_one_call_arrives_after_its_text(chat: ChatOpenAI) -> None:
    heard = await in_a_thread(lambda: listen(chat, [HumanMessage("ONECALL")]))
    assert heard.calls == [("call_a", "localSearch", {"query": "x", "n": 1.0})]
    assert (heard.message.text, finish(heard.message)) == ("Let me look.", "tool_calls")


async def test_three_calls_arrive_in_order(chat: ChatOpenAI) -> None:
    heard = await in_a_thread(lambda: listen(chat, [HumanMessage("BURST")]))
    assert heard.calls == [
        ("call_a", "localSearch", {"query": "a"}),
        ("call_b", "readNote", {"path": "b.md"}),
        ("call_c", "localSearch", {"query": "a"}),
    ]
    assert (heard.message.text, finish(heard.message)) == ("On it.", "tool_calls")


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("Please use readNote", ["note Please use readNote"]),
        ("BURST", ["found a", "note b.md", "found a"]),
    ],
)
async def test_tools_run_and_the_model_answers_with_what_the_last_one_said(
    chat: ChatOpenAI, words: str, ran: list[str]
) -> None:
    def loop() -> tuple[list[str], str]:
        said: list[AnyMessage] = [HumanMessage(words)]
        first = listen(chat, said)
        results = [TOOLS[call["name"]].invoke(call) for call in first.message.tool_calls]
        second = listen(chat, [*said, first.message, *results])
        return [result.text for result in results], second.message.text

    assert await in_a_thread(loop) == (ran, f"The tool said: {ran[-1]}")


# While it streams a form, LangChain hands the SDK's parsed objects to pydantic, which wonders.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
async def test_a_form_is_filled_in_streamed_or_not(chat: ChatOpenAI) -> None:
    speaker: Any = chat  # its own annotations are half unknown
    form = speaker.with_structured_output(Meeting, method="json_schema", strict=True)

    def fill_in() -> tuple[Meeting, list[Meeting]]:
        return form.invoke("When do we meet?"), list(form.stream("When do we meet?"))

    whole, streamed = await in_a_thread(fill_in)
    assert (whole, streamed[-1]) == (MEETING, MEETING)


async def test_an_error_keeps_its_class_and_its_code(chat: ChatOpenAI, server: Server) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        await in_a_thread(lambda: chat.invoke("E429"))
    assert limited.value.code == "insufficient_quota"
    stranger = ChatOpenAI(
        model="gpt-5", base_url=server.url, api_key=SecretStr("sk-nobodys"), max_retries=0
    )
    with pytest.raises(openai.AuthenticationError) as refused:
        await in_a_thread(lambda: stranger.invoke("TEXT"))
    assert refused.value.code == "invalid_api_key"


async def test_an_error_in_the_middle_of_a_stream_is_raised(chat: ChatOpenAI) -> None:
    # On the Responses API it is LangChain itself that raises, when it is told of the failure.
    with pytest.raises((openai.APIError, ValueError), match="stream disconnected"):
        await in_a_thread(lambda: listen(chat, [HumanMessage("CUT")], tools=False))


async def test_who_gives_up_is_free_at_once_and_the_next_question_is_answered(
    chat: ChatOpenAI,
) -> None:
    def leave() -> str:
        stream = chat.stream("HANG")
        return next(chunk.text for chunk in stream if chunk.text)

    with trio.fail_after(SOON):
        assert await in_a_thread(leave) == "Wait"
    assert (await in_a_thread(lambda: chat.invoke("TEXT"))).text == HELLO
