"""What is kept of responses: shown, gone on from, forgotten, and never another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from pipeline.events import ReasoningDelta, ReasoningItem, TextDelta, TurnEnd
from pipeline.loose_json import Json
from pipeline.turn import Turn
from tests.serve.asking import (
    ANN,
    BOB,
    KEYS,
    LOOK,
    RESPONSES,
    look_up,
    output,
    post,
    refused,
    respond,
    said,
    text,
    user,
    wish,
)
from tests.serve.scripted import (
    FAILS,
    HELLO,
    USAGE,
    LeavingBackend,
    Script,
    ScriptedBackend,
    Served,
    call,
    served,
)
from tests.serve.wire import post as as_bytes
from tests.serve.wire import wire

SEALED = ReasoningItem("rs_b", ("Hm.",), "sealed-1")
THOUGHT: Script = (ReasoningDelta("Hm.", item_id="rs_b"), SEALED, TextDelta("42"), USAGE, TurnEnd())
ASKS_FOR_SEALED = {"include": ["reasoning.encrypted_content"]}


def last_words(turn: Turn) -> Script:
    """Answers with what was said last."""
    return (TextDelta(f"<{said(turn)[-1]}>"), TurnEnd())


async def page(here: Served, response_id: str, **query: Any) -> Json:
    path = f"{RESPONSES}/{response_id}/input_items"
    answer = await here.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def texts(listed: Json) -> list[str]:
    return [item["content"][0]["text"] for item in listed["data"]]


# -- one response ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_shown_as_it_was_sent(shared: Served, stream: bool) -> None:
    told = await respond(shared, stream=stream, metadata={"a": "b"})
    assert (await look_up(shared, told["id"])).json() == told


@pytest.mark.parametrize("end", [FAILS, (ValueError("oops"),)], ids=["backend", "bug"])
async def test_a_stream_that_failed_is_shown_as_it_ended(end: Script) -> None:
    async with served(ScriptedBackend((TextDelta("Hal"), *end))) as here:
        told = await respond(here, stream=True)
        shown = (await look_up(here, told["id"])).json()
    assert (shown, shown["status"]) == (told, "failed")


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_streamed_response_is_stored_before_its_end_is_sent(leaves: bool) -> None:
    """The client may leave, or come back, as soon as it has read the last event."""
    go = trio.Event()
    async with served(LeavingBackend(HELLO, go.wait)) as here, wire(here) as connection:
        await connection.write(as_bytes(wish(stream=True), path=RESPONSES))
        await connection.read_until(b"event: response.completed\ndata: ")
        told = msgspec.json.decode(await connection.read_until(b"\n"))["response"]
        if leaves:
            await connection.stream.aclose()
        assert (await look_up(here, told["id"])).json() == told
        go.set()


async def test_a_response_is_forgotten_once(shared: Served) -> None:
    told = await respond(shared)
    path = f"{RESPONSES}/{told['id']}"
    gone = await shared.client.delete(path)
    assert gone.json() == {"id": told["id"], "object": "response", "deleted": True}
    for answer in (
        await shared.client.delete(path),
        await shared.client.get(path),
        await shared.client.get(f"{path}/input_items"),
        await shared.client.post(f"{path}/cancel"),
    ):
        assert refused(answer, 404) == ("not_found", None)


async def test_what_is_not_to_be_kept_is_not_found(shared: Served) -> None:
    told = await respond(shared, store=False)
    assert told["store"] is False
    refused(await look_up(shared, told["id"]), 404)
    answer = await post(shared, previous_response_id=told["id"])
    assert refused(answer, 404) == ("previous_response_not_found", "previous_response_id")
    reference = {"type": "item_reference", "id": told["output"][0]["id"]}
    assert refused(await post(shared, [reference]), 400)[1] == "input[0].id"


async def test_a_stored_response_is_not_streamed(shared: Served) -> None:
    told = await respond(shared)
    answer = await shared.client.get(f"{RESPONSES}/{told['id']}", params={"stream": "true"})
    assert refused(answer, 400)[1] == "stream"


# -- its input -------------------------------------------------------------------------------------


async def test_the_input_is_listed_newest_first_and_page_by_page(shared: Served) -> None:
    told = await respond(shared, [user(word) for word in ("one", "two", "three")])
    listed = await page(shared, told["id"])
    assert texts(listed) == ["three", "two", "one"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert texts(await page(shared, told["id"], order="asc")) == ["one", "two", "three"]
    first = await page(shared, told["id"], limit=2)
    assert (texts(first), first["has_more"]) == (["three", "two"], True)
    ids = [item["id"] for item in first["data"]]
    assert [first["first_id"], first["last_id"]] == ids
    rest = await page(shared, told["id"], limit=2, after=first["last_id"])
    assert (texts(rest), rest["has_more"]) == (["one"], False)
    empty = await page(shared, told["id"], after=rest["last_id"])
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "101"),
        ("limit", "-1"),
        ("limit", "ten"),
        ("limit", "²"),
        ("limit", "9" * 5_000),
        ("order", "up"),
        ("after", "msg_nobodys"),
    ],
)
async def test_a_wrong_page_is_named(shared: Served, name: str, value: str) -> None:
    told = await respond(shared)
    path = f"{RESPONSES}/{told['id']}/input_items"
    assert refused(await shared.client.get(path, params={name: value}), 400)[1] == name


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_of_three_goes_to_the_backend_in_order(stream: bool) -> None:
    scripts: list[Script] = [(TextDelta("Looking."), call("a"), TurnEnd()), HELLO, HELLO]
    backend = ScriptedBackend(lambda _: scripts.pop(0))
    async with served(backend) as here:
        more: Json = {"tools": [LOOK], "stream": stream}
        one = await respond(here, [user("A"), user("B")], **more)
        two = await respond(here, [output("a", "3")], previous_response_id=one["id"], **more)
        three = await respond(here, "C", previous_response_id=two["id"], **more)
        listed = await page(here, three["id"])
    assert said(backend.asked[-1]) == [
        "user: A",
        "user: B",
        "assistant: Looking.",
        "call call_a",
        "output call_a: 3",
        "assistant: Hello, world",
        "user: C",
    ]
    assert (three["previous_response_id"], texts(listed)) == (two["id"], ["C"])


async def test_a_conversation_with_a_gap_is_not_found(shared: Served) -> None:
    one = await respond(shared)
    two = await respond(shared, previous_response_id=one["id"])
    await shared.client.delete(f"{RESPONSES}/{one['id']}")
    answer = await post(shared, previous_response_id=two["id"])
    assert refused(answer, 404) == ("previous_response_not_found", "previous_response_id")
    assert one["id"] in answer.json()["error"]["message"]


async def test_items_are_referred_to_by_their_ids() -> None:
    backend = ScriptedBackend(last_words)
    async with served(backend) as here:
        first = await respond(here, "A")
        given = (await page(here, first["id"]))["data"][0]["id"]
        made = first["output"][0]["id"]
        refer = [{"type": "item_reference", "id": one} for one in (given, made)]
        await respond(here, [*refer, user("B")])
        refer[1] = {"type": "item_reference", "id": "msg_nobodys"}
        answer = await post(here, refer)
    assert said(backend.asked[-1]) == ["user: A", "assistant: <user: A>", "user: B"]
    assert refused(answer, 400) == ("invalid_request_error", "input[1].id")


async def test_an_item_outlives_a_response_that_only_repeated_it() -> None:
    async with served() as here:
        first = await respond(here, "A")
        (item,) = first["output"]
        second = await respond(here, [user("A"), item, user("B")])
        await here.client.delete(f"{RESPONSES}/{second['id']}")
        refer = [{"type": "item_reference", "id": item["id"]}, user("C")]
        await respond(here, refer, store=False)
        await here.client.delete(f"{RESPONSES}/{first['id']}")
        refused(await post(here, refer), 400)


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_comes_back_to_the_model_whether_it_was_shown_or_not(stream: bool) -> None:
    backend = ScriptedBackend(lambda turn: THOUGHT if len(turn.items) < 2 else HELLO)
    async with served(backend) as here:
        hidden = await respond(here, "A", stream=stream)
        shown = await respond(here, "A", stream=stream, **ASKS_FOR_SEALED)
        for told, visible in ((hidden, False), (shown, True)):
            stored = (await look_up(here, told["id"])).json()
            assert ("encrypted_content" in stored["output"][0]) is visible
            await respond(here, "B", previous_response_id=told["id"])
            whole = ["user: A", "reasoning sealed-1", "assistant: 42", "user: B"]
            assert said(backend.asked[-1]) == whole


async def test_reasoning_whose_seal_came_late_comes_back_sealed() -> None:
    late: Script = (ReasoningDelta("Hm.", item_id="rs_b"), TextDelta("42"), SEALED, TurnEnd())
    backend = ScriptedBackend(late)
    async with served(backend) as here:
        told = await respond(here, "A", stream=True)
        await respond(here, "B", previous_response_id=told["id"])
    assert "encrypted_content" not in str(told)
    assert said(backend.asked[-1])[1:3] == ["reasoning sealed-1", "assistant: 42"]


async def test_reasoning_is_referred_to_whether_it_was_shown_or_not() -> None:
    backend = ScriptedBackend(THOUGHT)
    async with served(backend) as here:
        hidden = await respond(here, "A")
        await respond(here, [user("A"), *hidden["output"], user("B")])
        refer = [{"type": "item_reference", "id": item["id"]} for item in hidden["output"]]
        await respond(here, [user("A"), *refer, user("C")])
    assert said(backend.asked[-1])[1:] == ["reasoning sealed-1", "assistant: 42", "user: C"]


# -- whose it is -----------------------------------------------------------------------------------


async def test_another_callers_response_is_not_found() -> None:
    async with served(api_keys=KEYS) as here:
        own = await respond(here, headers=ANN)
        path = f"{RESPONSES}/{own['id']}"
        for answer in (
            await here.client.get(path, headers=BOB),
            await here.client.delete(path, headers=BOB),
            await here.client.get(f"{path}/input_items", headers=BOB),
            await here.client.post(f"{path}/cancel", headers=BOB),
            await post(here, previous_response_id=own["id"], headers=BOB),
        ):
            refused(answer, 404)
        reference = {"type": "item_reference", "id": own["output"][0]["id"]}
        refused(await post(here, [reference], headers=BOB), 400)
        assert (await here.client.get(path, headers=ANN)).json() == own
        refused(await here.client.get(path), 401)


async def test_another_callers_item_is_not_found_by_its_id() -> None:
    backend = ScriptedBackend(last_words)
    async with served(backend, api_keys=KEYS) as here:
        own = await respond(here, "A", headers=ANN)
        item_id = own["output"][0]["id"]
        forged = {"type": "message", "role": "assistant", "id": item_id, "content": "forged"}
        await respond(here, [forged, user("B")], headers=BOB)
        reference = {"type": "item_reference", "id": item_id}
        await respond(here, [reference, user("C")], headers=ANN)
    assert said(backend.asked[-1])[0] == "assistant: <user: A>"


# -- how long --------------------------------------------------------------------------------------


async def test_what_is_kept_in_a_file_outlives_the_server(tmp_path: Path) -> None:
    store = str(tmp_path / "kept" / "store.sqlite3")
    backend = ScriptedBackend(THOUGHT)
    async with served(backend, store=store) as here:
        told = await respond(here, "A")
    async with served(backend, store=store) as again:
        assert (await look_up(again, told["id"])).json() == told
        await respond(again, "B", previous_response_id=told["id"])
    assert "reasoning sealed-1" in said(backend.asked[-1])


async def test_what_is_kept_in_memory_does_not(shared: Served) -> None:
    told = await respond(shared)
    async with served() as again:
        refused(await look_up(again, told["id"]), 404)


# -- many at once ----------------------------------------------------------------------------------


async def test_fifty_at_once_over_both_apis_get_their_own_answers() -> None:
    backend = ScriptedBackend(last_words)
    found: dict[int, str] = {}

    async def ask(here: Served, number: int) -> None:
        words = f"I am {number}"
        if number % 3 == 0:
            chat = (await here.ask(words)).json()
            found[number] = chat["choices"][0]["message"]["content"]
        else:
            response = await respond(here, words, stream=number % 3 == 1)
            found[number] = text(response)
            shown = (await look_up(here, response["id"])).json()
            assert shown == response

    with trio.fail_after(10):
        async with served(backend) as here, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, here, number)
    assert found == {number: f"<user: I am {number}>" for number in range(50)}
