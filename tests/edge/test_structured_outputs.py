"""Schemas that leave something open, as LangChain and the OpenAI SDK send them.

The model behind the server refuses a strict schema that is not closed, as OpenAI does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Final, Literal, TypeAlias

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from .conftest import Server
from .relay import Relay
from .test_langchain_python import chat, in_a_thread

__all__ = ["chat"]  # a fixture

MODEL: Final = "gpt-5"
QUESTION: Final = "When do we meet?"
Strict: TypeAlias = Literal[True, False] | None


class Guest(BaseModel):
    name: str
    role: Literal["host", "guest"] = "guest"


class Meeting(BaseModel):
    """A meeting of several people."""

    title: str
    hours: float | None = None
    guests: list[Guest] = Field(default=[], description="Who comes.")


class Ledger(BaseModel):
    """Amounts by names that nobody knows beforehand."""

    amounts: dict[str, int]


FILLED: Final[dict[str, Any]] = {
    "title": "some title",
    "hours": 7.5,
    "guests": [{"name": "some name", "role": "host"}],
}
OPEN: Final = Meeting.model_json_schema()


def sent(relay: Relay, mark: int) -> list[bool | None]:
    """How strict the client asked the server to be, request by request."""
    forms: list[bool | None] = []
    for told in relay.since(mark):
        (body,) = told.asked
        form = body["text"]["format"] if "text" in body else body["response_format"]["json_schema"]
        forms.append(form.get("strict"))
    return forms


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("strict", [None, False, True])
async def test_langchain_fills_in_a_model_with_optional_fields(chat: Any, strict: Strict) -> None:
    form = chat.with_structured_output(Meeting, method="json_schema", strict=strict)
    whole, streamed = await in_a_thread(lambda: (form.invoke(QUESTION), [*form.stream(QUESTION)]))
    assert (whole, streamed[-1]) == (Meeting(**FILLED), Meeting(**FILLED))


@pytest.mark.parametrize("strict", [None, False, True])
async def test_langchain_fills_in_a_schema_with_optional_fields(
    chat: Any, relay: Relay, strict: Strict
) -> None:
    mark = relay.mark()
    form = chat.with_structured_output(OPEN, method="json_schema", strict=strict)
    whole, streamed = await in_a_thread(lambda: (form.invoke(QUESTION), [*form.stream(QUESTION)]))
    assert (whole, streamed[-1]) == (FILLED, FILLED)
    assert sent(relay, mark) == [strict is True] * 2


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.url, api_key=server.key, max_retries=0, timeout=30.0
    ) as client:
        yield client


@pytest.mark.parametrize("wish", [{"strict": False}, {"strict": None}, {}], ids=str)
async def test_the_sdk_gets_an_open_schema_filled_in_on_both_apis(
    client: AsyncOpenAI, wish: Any
) -> None:
    form: Any = {"name": "Meeting", "description": "A meeting.", "schema": OPEN, **wish}
    completion = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_format={"type": "json_schema", "json_schema": form},
    )
    assert json.loads(completion.choices[0].message.content or "") == FILLED
    text: Any = {"format": {"type": "json_schema", **form}}
    response = await client.responses.create(model=MODEL, input=QUESTION, text=text)
    assert json.loads(response.output_text) == FILLED


async def test_the_sdk_parses_a_model_with_optional_fields_on_both_apis(
    client: AsyncOpenAI,
) -> None:
    completion = await client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_format=Meeting
    )
    assert completion.choices[0].message.parsed == Meeting(**FILLED)
    response = await client.responses.parse(model=MODEL, input=QUESTION, text_format=Meeting)
    assert response.output_parsed == Meeting(**FILLED)


async def test_the_sdk_learns_which_part_of_a_strict_model_is_open(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"at properties\.amounts,") as on_chat:
        await client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_format=Ledger
        )
    with pytest.raises(openai.BadRequestError, match=r"at properties\.amounts,") as on_responses:
        await client.responses.parse(model=MODEL, input=QUESTION, text_format=Ledger)
    assert on_chat.value.param == "response_format.json_schema.schema"
    assert on_responses.value.param == "text.format.schema"
    assert {on_chat.value.code, on_responses.value.code} == {"invalid_json_schema"}
