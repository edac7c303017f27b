"""Responses that nobody waits for: polled, cancelled, ended with the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.events import TextDelta, TurnEnd
from pipeline.loose_json import Json
from pipeline.serve.http import listening
from pipeline.turn import Turn
from tests.serve.asking import (
    ANN,
    BOB,
    KEYS,
    LOOK,
    RESPONSES,
    look_up,
    polled,
    post,
    refused,
    respond,
    said,
    text,
)
from tests.serve.scripted import (
    FAILS,
    HELLO,
    SOON,
    USAGE,
    LeavingBackend,
    Script,
    ScriptedBackend,
    Served,
    call,
    served,
)


async def begin(here: Served, words: str = "Hi", **more: Any) -> str:
    """Ask for a response in the background; its id."""
    response = await respond(here, words, background=True, **more)
    assert (response["status"], response["output"]) == ("queued", [])
    assert response["background"] is True
    return str(response["id"])


async def cancel(here: Served, response_id: str) -> dict[str, Any]:
    answer = await here.client.post(f"{RESPONSES}/{response_id}/cancel")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- its life --------------------------------------------------------------------------------------


async def test_a_response_is_queued_then_made_then_done() -> None:
    go = trio.Event()
    backend = ScriptedBackend((TextDelta("Hi"), go, call("a"), USAGE, TurnEnd()))
    async with served(backend) as here:
        response_id = await begin(here, tools=[LOOK])
        await backend.until_turn()
        assert (await polled(here, response_id, "in_progress"))["output"] == []
        go.set()
        done = await polled(here, response_id, "completed")
        lines = await here.until_logged(1)
        assert here.server.jobs == {}
    assert [item["type"] for item in done["output"]] == ["message", "function_call"]
    assert (done["id"], done["usage"]["total_tokens"]) == (response_id, 153)
    (made,) = (line for line in lines if line.get("background"))
    assert (made["background"], made["finish_reason"]) == (response_id, "tool_calls")


async def test_its_input_has_the_same_ids_from_its_beginning_to_its_end() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    seen: list[Json] = []
    async with served(backend) as here:
        response_id = await begin(here)
        for state in ("in_progress", "completed"):
            await polled(here, response_id, state)
            seen.append((await here.client.get(f"{RESPONSES}/{response_id}/input_items")).json())
            go.set()
        item_id = seen[0]["data"][0]["id"]
        await respond(here, [{"type": "item_reference", "id": item_id}])
    assert seen[0] == seen[1]


async def test_a_response_may_wait_for_its_place() -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    async with served(backend, concurrency=1) as here:
        first, second = await begin(here), await begin(here)
        await backend.until_turn()
        await polled(here, first, "in_progress")
        await here.until(lambda: here.server.admission.waiting == 1)
        assert (await look_up(here, second)).json()["status"] == "queued"
        assert len(backend.turns) == 1
        go.set()
        for one in (first, second):
            await polled(here, one, "completed")
        assert here.server.admission.running == 0


async def test_who_finds_no_place_is_told_at_once() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, concurrency=1, queue_size=0) as here:
        first = await begin(here)
        await backend.until_turn()
        refusal = await post(here, background=True)
        await cancel(here, first)
    assert refused(refusal, 429) == ("rate_limit_exceeded", None)
    assert refusal.headers["retry-after"] == "1"


async def test_a_request_in_the_background_counts_once() -> None:
    async with served(ScriptedBackend(HELLO), requests_per_minute=2) as here:
        for _ in range(2):
            await polled(here, await begin(here), "completed")
        assert refused(await post(here, background=True), 429)[0] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    "script", [FAILS, (TextDelta("Hal"), *FAILS), (ValueError("oops"),)], ids=str
)
async def test_a_response_that_failed_says_why(script: Script) -> None:
    async with served(ScriptedBackend(script)) as here:
        failed = await polled(here, await begin(here), "failed")
        again = await cancel(here, failed["id"])
        await here.until(lambda: any(line.get("error_code") for line in here.lines()))
        assert "oops" not in str(failed)
    assert failed["error"]["code"] == "server_error"
    assert failed["error"]["message"]
    assert again == failed


# -- giving up -------------------------------------------------------------------------------------


async def test_a_response_is_cancelled_and_its_turn_left_once() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        response_id = await begin(here)
        turn = await backend.until_turn()
        cancelled = await cancel(here, response_id)
        assert (turn.left, here.server.admission.running) == ("cancelled", 0)
        assert await cancel(here, response_id) == cancelled
        assert (await look_up(here, response_id)).json() == cancelled
    assert (cancelled["status"], cancelled["output"], len(backend.turns)) == ("cancelled", [], 1)


async def test_a_response_that_waits_is_cancelled_too() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, concurrency=1) as here:
        first, second = await begin(here), await begin(here)
        await backend.until_turn()
        for one in (second, first):
            assert (await cancel(here, one))["status"] == "cancelled"
        assert (here.server.admission.waiting, here.server.admission.running) == (0, 0)
    assert len(backend.turns) == 1


async def test_two_cancel_at_once() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend) as here:
        response_id = await begin(here)
        await backend.until_turn()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(cancel, here, response_id)
        assert (await look_up(here, response_id)).json()["status"] == "cancelled"
    assert [turn.left for turn in backend.turns] == ["cancelled"]


async def test_a_response_that_is_done_stays_done() -> None:
    async with served() as here:
        done = await polled(here, await begin(here), "completed")
        assert await cancel(here, done["id"]) == done


async def breaks() -> None:
    raise ZeroDivisionError


async def test_a_response_that_is_done_stays_done_though_its_turn_breaks_when_it_is_left() -> None:
    async with served(LeavingBackend(HELLO, breaks)) as here:
        response_id = await begin(here)
        lines = await here.until_logged(2)
        assert (await look_up(here, response_id)).json()["status"] == "completed"
    assert [line.get("error_code") for line in lines if line.get("background")] == [
        "internal_error"
    ]


async def test_a_response_that_is_done_is_not_cancelled_while_its_turn_is_left() -> None:
    go = trio.Event()
    async with served(LeavingBackend(HELLO, go.wait)) as here, trio.open_nursery() as nursery:
        response_id = await begin(here)
        await polled(here, response_id, "completed")

        async def let_go() -> None:
            await here.until(lambda: here.server.jobs[response_id].scope.cancel_called)
            go.set()

        nursery.start_soon(let_go)
        assert (await cancel(here, response_id))["status"] == "completed"
        assert (await look_up(here, response_id)).json()["status"] == "completed"


async def test_a_response_that_is_forgotten_while_it_is_made_is_made_no_more() -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with served(backend) as here:
        response_id = await begin(here)
        turn = await backend.until_turn()
        gone = await here.client.delete(f"{RESPONSES}/{response_id}")
        assert gone.json()["deleted"] is True
        assert turn.left == "cancelled"
        assert here.server.jobs == {}
        refused(await look_up(here, response_id), 404)


async def test_nobody_ends_what_is_another_s() -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with served(backend, api_keys=KEYS) as here:
        response_id = await begin(here, headers=ANN)
        turn = await backend.until_turn()
        path = f"{RESPONSES}/{response_id}"
        refused(await here.client.post(f"{path}/cancel", headers=BOB), 404)
        refused(await here.client.delete(path, headers=BOB), 404)
        assert not turn.over.is_set()
        assert (await here.client.delete(path, headers=ANN)).status_code == 200


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param"), [({"stream": True}, "stream"), ({"store": False}, "background")]
)
async def test_some_wishes_do_not_go_with_the_background(
    shared: Served, more: Json, param: str
) -> None:
    answer = await post(shared, background=True, **more)
    assert refused(answer, 400) == ("invalid_request_error", param)
    assert shared.server.jobs == {}


async def test_only_what_runs_in_the_background_is_cancelled(shared: Served) -> None:
    told = await respond(shared)
    answer = await shared.client.post(f"{RESPONSES}/{told['id']}/cancel")
    refused(answer, 400)
    assert (await look_up(shared, told["id"])).json() == told


async def test_nothing_goes_on_from_what_is_still_being_made() -> None:
    go = trio.Event()
    backend = ScriptedBackend(lambda turn: HELLO if len(turn.items) > 1 else (go, *HELLO))
    async with served(backend) as here:
        response_id = await begin(here, "A")
        answer = await post(here, "B", previous_response_id=response_id)
        assert refused(answer, 400) == ("invalid_request_error", "previous_response_id")
        go.set()
        await polled(here, response_id, "completed")
        await respond(here, "B", previous_response_id=response_id)
    assert said(backend.asked[-1]) == ["user: A", "assistant: Hello, world", "user: B"]


# -- the end of the server -------------------------------------------------------------------------


async def test_a_server_that_ends_lets_what_it_makes_be_finished(tmp_path: Path) -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    store = str(tmp_path / "store.sqlite3")

    async def finish(here: Served) -> None:
        await here.server.stopping.wait()
        go.set()

    with trio.fail_after(SOON):
        async with (
            trio.open_nursery() as nursery,
            served(backend, store=store, shutdown_grace=60.0) as here,
        ):
            response_id = await begin(here)
            nursery.start_soon(finish, here)
    async with served(backend, store=store) as again:
        done = (await look_up(again, response_id)).json()
    assert (done["status"], text(done)) == ("completed", "Hello, world")


async def test_a_server_that_ends_ends_what_it_makes_and_tells(tmp_path: Path) -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    store = str(tmp_path / "store.sqlite3")
    with trio.fail_after(listening.LAST_WORDS):  # which are not waited for
        async with served(backend, store=store, concurrency=1) as here:
            running, waiting = await begin(here), await begin(here)
            await backend.until_turn()
            await here.until(lambda: here.server.admission.waiting == 1)
    assert backend.turns[0].left == "cancelled"
    async with served(store=store) as again:
        for response_id in (running, waiting):
            ended = (await look_up(again, response_id)).json()
            assert ended["status"] == "failed"
            assert "shutting down" in ended["error"]["message"]


async def test_what_a_server_left_behind_without_a_word_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash: the last that was written is that it was being made."""

    async def forget(_: object) -> None:
        pass

    backend = ScriptedBackend((trio.Event(),))
    store = str(tmp_path / "store.sqlite3")
    async with served(backend, store=store) as here:
        response_id = await begin(here)
        await polled(here, response_id, "in_progress")
        monkeypatch.setattr(here.server.store, "put", forget)
    async with served(store=store) as again:
        left = (await look_up(again, response_id)).json()
        assert (left["status"], left["error"]["code"]) == ("failed", "server_error")
        assert await cancel(again, response_id) == left


async def test_many_at_once_get_their_own_answers() -> None:
    def answer(turn: Turn) -> Script:
        return (TextDelta(f"<{said(turn)[-1]}>"), TurnEnd())

    found: dict[int, str] = {}

    async def ask(here: Served, number: int) -> None:
        done = await polled(here, await begin(here, f"I am {number}"), "completed")
        found[number] = text(done)

    async with (
        served(ScriptedBackend(answer), concurrency=4) as here,
        trio.open_nursery() as nursery,
    ):
        for number in range(20):
            nursery.start_soon(ask, here, number)
    assert found == {number: f"<user: I am {number}>" for number in range(20)}
