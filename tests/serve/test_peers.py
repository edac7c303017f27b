"""Two servers on one store, as workers are: each gives right answers about what the other does."""

from __future__ import annotations

import io
import re
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from attrs import evolve, frozen
from structlog.testing import capture_logs

from pipeline.assembly import Settings
from pipeline.events import TextDelta, TurnEnd
from pipeline.loose_json import Json
from pipeline.serve.http.listening import bind
from pipeline.serve.memory.peers import Peers
from pipeline.serve.observe import logs
from pipeline.serve.running import serving
from pipeline.workers import ipc
from pipeline.workers.worker import answer_peer
from tests.serve.asking import (
    ANN,
    BOB,
    KEYS,
    RESPONSES,
    look_up,
    polled,
    post,
    refused,
    respond,
    said,
    text,
    user,
    wish,
)
from tests.serve.scripted import HELLO, SOON, ScriptedBackend, Served
from tests.serve.test_websocket import heard, say, spoken
from tests.serve.wire import post as as_bytes
from tests.serve.wire import wire

BEING_MADE = ("queued", "in_progress")


class Link:
    """What the other server is asked by its peer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = False
        """Whether it runs and answers nothing."""
        self.life = trio.CancelScope()
        """Cancelled, it does not listen to its peers any more."""


@frozen
class Pair:
    """The one that is asked first, and the other, which asks the first by a link."""

    one: Served
    other: Served
    link: Link


@asynccontextmanager
async def member(
    name: str, settings: Settings, backend: ScriptedBackend, link: Link
) -> AsyncGenerator[Served]:
    log = io.StringIO()
    logs.configure(settings, log)
    peers = Peers(name, Path(settings.store).parent, tuple(bind(settings.host, 0)))

    async def answer(connection: ipc.Connection, message: Json) -> object:
        link.asked.append(message["kind"])
        if link.silent:
            await trio.sleep_forever()
        return await answer_peer(running.server, connection, message)

    async def listen(task_status: trio.TaskStatus[Any]) -> None:
        with link.life:
            await ipc.serve(peers.socket, answer, task_status=task_status)

    async with (
        serving(settings, backend=backend, peers=peers) as running,
        httpx.AsyncClient(base_url=running.url, timeout=SOON, verify=False) as client,  # noqa: S501
        trio.open_nursery() as nursery,
    ):
        await nursery.start(listen)
        yield Served(running.url, client, running.server, log)
        await client.aclose()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pair(
    tmp_path: Path, backend: ScriptedBackend | None = None, **flags: Any
) -> AsyncGenerator[Pair]:
    """Two servers; the second can only say hello."""
    usual = Settings(store=str(tmp_path / "store.sqlite3"), shutdown_grace=0.0, workers=2)
    settings, link = evolve(usual, **flags), Link()
    async with (
        member("1", settings, backend or ScriptedBackend(), link) as one,
        member("2", settings, ScriptedBackend(), Link()) as other,
    ):
        yield Pair(one, other, link)


@contextmanager
def nothing_is_written(tmp_path: Path) -> Generator[None]:
    """Somebody else writes to the store, and takes his time."""
    writer = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        writer.execute("ROLLBACK")
        writer.close()


async def begin(here: Served, **more: Any) -> str:
    return str((await respond(here, background=True, **more))["id"])


# -- what was kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True}], ids=str)
async def test_a_client_has_a_response_once_every_peer_finds_it(tmp_path: Path, more: Json) -> None:
    had: list[Json] = []

    async def ask() -> None:
        had.append(await respond(both.one, **more))

    async with pair(tmp_path) as both:
        async with trio.open_nursery() as nursery:
            with nothing_is_written(tmp_path):
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not had
        shown = (await look_up(both.other, had[0]["id"])).json()
        assert shown["id"] == had[0]["id"]
        if not more.get("background"):
            assert (shown, both.link.asked) == (had[0], [])


async def test_a_stream_ends_once_every_peer_finds_it(tmp_path: Path) -> None:
    """What comes before its end is not delayed, and a sign of life does no harm meanwhile."""
    backend = ScriptedBackend((TextDelta("Hi"), go := trio.Event(), TurnEnd()))
    async with pair(tmp_path, backend, ping_interval=0.02) as both, wire(both.one) as connection:
        await connection.write(as_bytes(wish(stream=True), path=RESPONSES))
        with nothing_is_written(tmp_path):
            await connection.read_until(b'"delta":"Hi"')
            go.set()
            with trio.move_on_after(0.2) as waiting:
                await connection.read_until(b"response.completed")
            assert waiting.cancelled_caught
        told = await connection.read_until(b"[DONE]\n\n")
        (response_id,) = set(re.findall(rb"resp_\w+", told))
        shown = await look_up(both.other, response_id.decode())
        assert (shown.json()["status"], both.link.asked) == ("completed", [])


async def test_an_answer_on_a_websocket_ends_once_every_peer_finds_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as both, spoken(both.one) as socket:
        with nothing_is_written(tmp_path):
            await say(socket, "Hi", store=True)
            with trio.move_on_after(0.2) as waiting:
                await heard(socket)
            assert waiting.cancelled_caught
        response = (await heard(socket))[-1]["response"]
        assert (await look_up(both.other, response["id"])).json() == response


async def test_a_conversation_goes_on_wherever_it_is_continued(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        first = await respond(both.one, "A")
        second = await respond(both.other, "B", previous_response_id=first["id"])
        await respond(both.one, "C", previous_response_id=second["id"])
        backend: Any = both.one.server.backend
    told = ["user: A", "assistant: Hello, world", "user: B", "assistant: Hello, world", "user: C"]
    assert said(backend.asked[-1]) == told


async def test_an_item_is_found_by_its_id_wherever_it_is_referred_to(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        backend: Any = both.other.server.backend
        (item,) = (await respond(both.one, "A"))["output"]
        await respond(both.other, [{"type": "item_reference", "id": item["id"]}, user("B")])
    assert said(backend.asked[-1]) == ["assistant: Hello, world", "user: B"]


async def test_what_one_sealed_the_other_opens(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        short = (await post(both.one, "A", path=f"{RESPONSES}/compact")).json()
        await respond(both.other, [*short["output"], user("B")])
        backend: Any = both.other.server.backend
    assert any("Hello, world" in words for words in said(backend.asked[-1]))


async def test_a_response_that_is_not_stored_is_not_found(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        refused(await look_up(both.other, "resp_nobody"), 404)


async def test_one_deletes_what_the_other_kept(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        kept = await respond(both.one)
        gone = await both.other.client.delete(f"{RESPONSES}/{kept['id']}")
        assert gone.json()["deleted"] is True
        refused(await look_up(both.one, kept["id"]), 404)


# -- what is being made ----------------------------------------------------------------------------


async def test_each_worker_shows_the_responses_of_the_other(
    tmp_path: Path,
) -> None:
    go = trio.Event()
    backend = ScriptedBackend((go, *HELLO))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        await backend.until_turn()
        assert (await look_up(both.other, response_id)).json()["status"] in BEING_MADE
        go.set()
        done = await polled(both.other, response_id, "completed", "failed")
    assert (done["status"], text(done)) == ("completed", "Hello, world")


async def test_one_cancels_what_the_other_makes(tmp_path: Path) -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        turn = await backend.until_turn()
        answer = await both.other.client.post(f"{RESPONSES}/{response_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert turn.left == "cancelled"
        assert (await look_up(both.one, response_id)).json() == answer.json()


async def test_one_deletes_what_the_other_makes(tmp_path: Path) -> None:
    backend = ScriptedBackend((TextDelta("Hi"), trio.Event()))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        turn = await backend.until_turn()
        assert (await both.other.client.delete(f"{RESPONSES}/{response_id}")).status_code == 200
        assert (turn.left, both.one.server.jobs) == ("cancelled", {})
        for here in (both.one, both.other):
            refused(await look_up(here, response_id), 404)


async def test_another_callers_response_cannot_be_ended_through_the_other_worker(
    tmp_path: Path,
) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with pair(tmp_path, backend, api_keys=KEYS) as both:
        response_id = await begin(both.one, headers=ANN)
        turn = await backend.until_turn()
        path = f"{RESPONSES}/{response_id}"
        refused(await both.other.client.post(f"{path}/cancel", headers=BOB), 404)
        refused(await both.other.client.delete(path, headers=BOB), 404)
        assert not turn.over.is_set()
        assert (await both.other.client.delete(path, headers=ANN)).status_code == 200


async def test_what_a_dead_peer_was_making_has_failed(tmp_path: Path) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        both.link.life.cancel()  # as when its process has died
        left = (await look_up(both.other, response_id)).json()
        assert (left["status"], left["error"]["code"]) == ("failed", "server_error")
        other: Any = both.other.server.backend  # and what has failed may be gone on from
        await respond(both.other, "B", previous_response_id=response_id)
    assert said(other.asked[-1])[-1] == "user: B"


async def test_the_others_are_asked_once_and_only_for_what_this_one_does_not_make(
    tmp_path: Path,
) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        await look_up(both.one, response_id)
        assert both.link.asked == []
        await look_up(both.other, response_id)
        assert both.link.asked == ["makes"]
        await both.other.client.post(f"{RESPONSES}/{response_id}/cancel")
        assert both.link.asked == ["makes", "makes", "cancel"]


async def test_what_may_be_made_by_one_that_is_silent_is_neither_cancelled_nor_deleted(
    tmp_path: Path,
) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with pair(tmp_path, backend) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        path = f"{RESPONSES}/{response_id}"
        both.link.silent = True
        for answer in (
            await both.other.client.post(f"{path}/cancel"),
            await both.other.client.delete(path),
        ):
            assert refused(answer, 503) == ("server_is_overloaded", None)
            assert answer.headers["Retry-After"] == "5"
            assert "did not reply" in answer.json()["error"]["message"]
        assert (await look_up(both.other, response_id)).json()["status"] == "in_progress"
        both.link.silent = False
        assert (await both.other.client.delete(path)).json()["deleted"] is True
        refused(await look_up(both.one, response_id), 404)


# -- what is told ----------------------------------------------------------------------------------


async def test_health_and_metrics_cover_both(tmp_path: Path) -> None:
    backend = ScriptedBackend((trio.Event(),))
    async with pair(tmp_path, backend) as both:
        await begin(both.one)
        await backend.until_turn()
        await both.other.ask()
        health = (await both.other.client.get("/healthz")).json()
        assert health == {"status": "ok", "turns": 1, "waiting": 0, "workers": 2}
        told = (await both.one.client.get("/metrics")).text.splitlines()
    assert 'proxy_turns_running{worker="1"} 1.0' in told
    assert 'proxy_turns_running{worker="2"} 0.0' in told
    chat = 'proxy_requests_total{mode="json",route="/v1/chat/completions",status="200",worker="2"}'
    assert f"{chat} 1.0" in told
    assert sum(line.startswith("# TYPE proxy_requests_total ") for line in told) == 1


async def test_the_metrics_of_a_single_server_have_no_worker_label(shared: Served) -> None:
    assert "worker" not in (await shared.client.get("/metrics")).text
    assert "workers" not in (await shared.client.get("/healthz")).json()


async def test_a_message_that_is_not_known_is_logged_and_gets_no_reply(
    shared: Served, tmp_path: Path
) -> None:
    socket = tmp_path / "ipc-1.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(ipc.serve, socket, partial(answer_peer, shared.server))
        with capture_logs() as logged:
            assert await ipc.request(socket, {"kind": "cake"}) is None
        nursery.cancel_scope.cancel()
    assert [line["event"] for line in logged] == [
        "a message from another process could not be handled"
    ]
