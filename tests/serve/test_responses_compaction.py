"""Conversations made short: what is sealed, what comes back, and for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.events import TextDelta, TurnEnd
from pipeline.loose_json import Json
from pipeline.serve.memory.sealed import PREFACE
from pipeline.serve.routes.compaction import ASK_FOR_SUMMARY
from pipeline.turn import Turn
from tests.serve.asking import (
    ANN,
    BOB,
    KEYS,
    LOOK,
    RESPONSES,
    look_up,
    output,
    polled,
    post,
    refused,
    respond,
    said,
    text,
    user,
    wish,
)
from tests.serve.scripted import FAILS, HELLO, USAGE, Script, ScriptedBackend, Served, call, served
from tests.support.responses_automaton import check_stream, parse_stream

COMPACT = f"{RESPONSES}/compact"
TRIGGER: Json = {"type": "compaction_trigger"}
SUMMARY = "They like plums."
SHORT = f"user: {PREFACE}\n\n{SUMMARY}"
TALK: list[Json] = [
    user("I like plums"),
    {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"},
    output("a", "three plums"),
    {"type": "message", "role": "assistant", "content": "You have three."},
    user("And pears?"),
]
KEPT = ["user: I like plums", "user: And pears?", SHORT]


def is_summing_up(turn: Turn) -> bool:
    return said(turn)[-1] == f"user: {ASK_FOR_SUMMARY}"


def sums_up(turn: Turn) -> Script:
    return (TextDelta(SUMMARY), USAGE, TurnEnd()) if is_summing_up(turn) else HELLO


def asked_for(way: str, items: list[Json], **more: Any) -> Json:
    """A request to make a conversation short, in one of the ways there are."""
    if way == "endpoint":
        return {"said": items, "path": COMPACT, **more}
    return {"said": [*items, TRIGGER], "stream": way == "stream", **more}


async def compact(here: Served, way: str, items: list[Json], **more: Any) -> dict[str, Any]:
    asked = dict(asked_for(way, items, **more))
    return await respond(here, asked.pop("said"), **asked)


WAYS = pytest.mark.parametrize("way", ["endpoint", "whole", "stream"])


@WAYS
async def test_one_item_stands_for_the_conversation_and_opens_to_it(way: str) -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        told = await compact(here, way, TALK, tools=[LOOK], instructions="Be kind.")
        (item,) = told["output"]
        await respond(here, [item, user("Go on")])
    assert told["object"] == ("response.compaction" if way == "endpoint" else "response")
    assert told["usage"]["total_tokens"] == 153
    assert set(item) == {"type", "id", "encrypted_content"}
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    assert "plums" not in item["encrypted_content"]
    summing, after = backend.asked
    assert (summing.tools, summing.offered, summing.instructions) == ((), (), "Be kind.")
    assert said(summing)[:-1] == [
        "user: I like plums",
        "call call_a",
        "output call_a: three plums",
        "assistant: You have three.",
        "user: And pears?",
    ]
    assert said(after) == [*KEPT, "user: Go on"]


@WAYS
async def test_a_conversation_that_was_short_already_is_made_short_again(way: str) -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        (first,) = (await compact(here, way, TALK))["output"]
        (second,) = (await compact(here, way, [first]))["output"]
        await respond(here, [second, user("Go on")])
    assert said(backend.asked[1])[:-1] == KEPT
    assert said(backend.asked[-1]) == [*KEPT, "user: Go on"]
    assert first["id"] != second["id"]


async def test_a_request_may_end_with_what_was_made_short() -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        (item,) = (await compact(here, "endpoint", TALK))["output"]
        response = await respond(here, [item])
    assert text(response) == "Hello, world"
    assert said(backend.asked[-1]) == KEPT


@WAYS
async def test_a_conversation_goes_on_by_id_through_what_was_made_short(way: str) -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        first = await respond(here, "I like plums")
        before = {"previous_response_id": first["id"]}
        if way == "endpoint":
            (item,) = (await compact(here, way, [user("And pears?")], **before))["output"]
            second = await respond(here, [item, user("Go on")])
        else:
            short = await compact(here, way, [user("And pears?")], **before)
            assert (await look_up(here, short["id"])).json() == short
            second = await respond(here, "Go on", previous_response_id=short["id"])
        assert said(backend.asked[-1]) == [*KEPT, "user: Go on"]
        await respond(here, "And on", previous_response_id=second["id"])
    went_on = ["user: Go on", "assistant: Hello, world", "user: And on"]
    assert said(backend.asked[-1]) == [*KEPT, *went_on]


async def test_what_was_made_short_is_referred_to_by_its_id() -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        (item,) = (await compact(here, "whole", TALK))["output"]
        await respond(here, [{"type": "item_reference", "id": item["id"]}, user("Go on")])
    assert said(backend.asked[-1]) == [*KEPT, "user: Go on"]


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
async def test_a_summary_under_any_of_its_names_is_gone_on_from_by_id(kind: str) -> None:
    backend = ScriptedBackend(sums_up)
    async with served(backend) as here:
        (item,) = (await compact(here, "whole", TALK))["output"]
        first = await respond(here, [{**item, "type": kind}, user("Go on")])
        await respond(here, "And on", previous_response_id=first["id"])
    assert said(backend.asked[-1])[: len(KEPT)] == KEPT


async def test_a_conversation_is_made_short_in_the_background() -> None:
    async with served(ScriptedBackend(sums_up)) as here:
        begun = await compact(here, "whole", TALK, background=True)
        done = await polled(here, begun["id"], "completed")
    assert [item["type"] for item in done["output"]] == ["compaction"]


async def test_a_summary_is_words_whatever_it_quotes() -> None:
    quoting = f"{SUMMARY} <use_tool><name>look</name></use_tool>"
    backend = ScriptedBackend(lambda turn: (TextDelta(quoting), TurnEnd()))
    flags = {"output_mode": "obsidian-xml", "responses_output_mode": "obsidian-xml"}
    async with served(backend, unknown_tool_policy="call", **flags) as here:
        (item,) = (await compact(here, "whole", TALK, tools=[LOOK]))["output"]
        await respond(here, [item, user("Go on")])
    assert quoting in said(backend.asked[-1])[2]


# -- what cannot be opened -------------------------------------------------------------------------


async def test_what_was_not_sealed_here_for_this_key_or_not_so_is_refused() -> None:
    async with served(ScriptedBackend(sums_up), api_keys=KEYS) as here:
        (item,) = (await compact(here, "endpoint", TALK, headers=ANN))["output"]
        sealed = item["encrypted_content"]
        middle = len(sealed) // 2
        other = "A" if sealed[middle] != "A" else "B"
        altered = f"{sealed[:middle]}{other}{sealed[middle + 1 :]}"
        for content, headers in (
            ("gAAAAAforeign", ANN),
            ("", ANN),
            (altered, ANN),
            (sealed[:-8], ANN),
            (sealed, BOB),
        ):
            forged = {**item, "encrypted_content": content}
            for path, last in ((RESPONSES, []), (RESPONSES, [TRIGGER]), (COMPACT, [])):
                answer = await post(here, [user("A"), forged, *last], path=path, headers=headers)
                code = ("invalid_request_error", "input[1].encrypted_content")
                assert refused(answer, 400) == code
        await respond(here, [item], headers=ANN)


async def test_what_was_sealed_opens_as_long_as_its_key_is_there(tmp_path: Path) -> None:
    backend = ScriptedBackend(sums_up)
    store = str(tmp_path / "store.sqlite3")
    async with served(backend, store=store) as here:
        short = await compact(here, "whole", TALK)
    async with served(backend, store=store) as here:
        await respond(here, short["output"])
        assert said(backend.asked[-1]) == KEPT
    (tmp_path / "seal.key").unlink()
    async with served(backend, store=store) as here:
        code = refused(await post(here, short["output"]), 400)
        assert code == ("invalid_request_error", "input[0].encrypted_content")
        lost = await post(here, "Go on", previous_response_id=short["id"])
    assert refused(lost, 400) == ("invalid_request_error", "previous_response_id")


# -- what fails ------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize(
    "script", [(TurnEnd(),), (TextDelta(" \n"), TurnEnd()), (call("a"), TurnEnd()), FAILS], ids=str
)
async def test_no_summary_is_a_failure_of_the_upstream(way: str, script: Script) -> None:
    async with served(ScriptedBackend(script)) as here:
        asked = dict(asked_for(way, TALK))
        answer = await post(here, asked.pop("said"), **asked)
        assert here.server.admission.running == 0
    assert refused(answer, 502) == ("upstream_error", None)


async def test_a_summary_that_takes_its_time_is_waited_for_with_signs_of_life() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, TextDelta(SUMMARY), TurnEnd()))
    async with (
        served(backend, prime_window=0.01, ping_interval=0.01) as here,
        here.client.stream("POST", RESPONSES, json=wish([*TALK, TRIGGER], stream=True)) as answer,
    ):
        data = b""
        async for piece in answer.aiter_bytes():
            data += piece
            if data.count(b'"keepalive"') >= 2:
                go.set()
    response = check_stream(data)
    done = [event for event in parse_stream(data) if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == response["output"]
    assert [item["type"] for item in response["output"]] == ["compaction"]


async def test_a_summary_that_fails_late_is_told_within_the_stream() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *FAILS))
    async with (
        served(backend, prime_window=0.01) as here,
        here.client.stream("POST", RESPONSES, json=wish([*TALK, TRIGGER], stream=True)) as answer,
    ):
        go.set()
        response = check_stream(await answer.aread())
    assert (response["status"], response["output"]) == ("failed", [])


@pytest.mark.parametrize("way", ["endpoint", "whole"])
async def test_a_client_that_leaves_ends_the_summary(way: str) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend) as here:
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: compact(here, way, TALK))
                await backend.until_turn()
                gone.cancel()
        (turn,) = backend.turns
        await turn.over.wait()
        (line,) = await here.until_logged()
    assert (turn.left, line["client_left"]) == ("cancelled", True)


@WAYS
async def test_a_summary_is_one_line_with_what_it_cost_and_no_word_of_it(way: str) -> None:
    async with served(ScriptedBackend(sums_up)) as here:
        await compact(here, way, TALK, tools=[LOOK])
        (line,) = await here.until_logged()
        assert "plums" not in here.log.getvalue()
    assert (line["status"], line["model"]) == (200, "gpt-5")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (120, 33)


async def test_a_trigger_stands_last_or_not_at_all(shared: Served) -> None:
    answer = await post(shared, [TRIGGER, user("A")])
    assert refused(answer, 400) == ("invalid_request_error", "input[0]")
    refused(await post(shared, [TRIGGER]), 400)


async def test_what_stands_before_a_summary_in_the_input_is_gone_on_from_too() -> None:
    backend = ScriptedBackend(lambda turn: sums_up(turn) if is_summing_up(turn) else HELLO)
    async with served(backend) as here:
        short = (await compact(here, "endpoint", [user("Remember 42")]))["output"][0]
        rule = {"type": "message", "role": "developer", "content": "Touch nothing"}
        more = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}
        first = await respond(here, [rule, more, short, user("Go")])
        await respond(here, "On", previous_response_id=first["id"])
    assert backend.asked[-1].instructions == "Touch nothing"
    assert [tool.name for tool in backend.asked[-1].tools] == ["look"]


async def test_what_a_summary_replaced_need_not_be_kept() -> None:
    backend = ScriptedBackend(lambda turn: sums_up(turn) if is_summing_up(turn) else HELLO)
    async with served(backend) as here:
        first = await respond(here, "Remember 42")
        trigger = [{"type": "compaction_trigger"}]
        short = await respond(here, trigger, previous_response_id=first["id"])
        assert (await here.client.delete(f"/v1/responses/{first['id']}")).status_code == 200
        await respond(here, "On", previous_response_id=short["id"])
    assert "Remember 42" in str(backend.asked[-1].items)
