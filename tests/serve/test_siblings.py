"""Two servers on one store, as workers are: each gives right answers about what the other does."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from attrs import evolve, frozen

from pipeline.events import TextDelta
from pipeline.loose_json import as_json
from pipeline.serve import logs
from pipeline.serve.app import Server
from pipeline.serve.listening import bind
from pipeline.serve.running import Among, serving
from pipeline.serve.siblings import Asked, answer_sibling
from pipeline.settings import Settings
from pipeline.workers.team import UNANSWERED
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
)
from tests.serve.scripted import HELLO, SOON, ScriptedDoor, Served

BEING_MADE = ("queued", "in_progress")


class Family:
    """Servers that ask one another as workers do, without processes between them."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.silent = False
        """Whether they live and say nothing."""
        self.asked: list[str] = []

    def siblings(self, name: str) -> Asked:
        async def ask_all(what: str, given: Mapping[str, Any]) -> list[Any]:
            self.asked.append(what)
            if self.silent:
                return [UNANSWERED[what]] if what in UNANSWERED else []
            others = [(other, one) for other, one in self.servers.items() if other != name]
            return [await answer_sibling(one, other, what, as_json(given)) for other, one in others]

        def exposition() -> bytes:
            return self.servers[name].metrics.exposition()

        return Asked(name, ask_all, exposition)


@frozen
class Pair:
    """The one that is asked first, and the other."""

    one: Served
    other: Served
    family: Family


@asynccontextmanager
async def member(
    family: Family, name: str, settings: Settings, door: ScriptedDoor
) -> AsyncGenerator[Served]:
    log = io.StringIO()
    logs.configure(settings, log)
    among = Among(bind(settings.host, 0), family.siblings(name))
    async with (
        serving(settings, door=door, among=among) as running,
        httpx.AsyncClient(base_url=running.url, timeout=SOON, verify=False) as client,  # noqa: S501
    ):
        family.servers[name] = running.server
        yield Served(running.url, client, running.server, log)
        await client.aclose()


@asynccontextmanager
async def pair(
    tmp_path: Path, door: ScriptedDoor | None = None, **flags: Any
) -> AsyncGenerator[Pair]:
    """Two servers; the second can only say hello."""
    usual = Settings(store=str(tmp_path / "store.sqlite3"), shutdown_grace=0.0, workers=2)
    settings, family = evolve(usual, **flags), Family()
    async with (
        member(family, "1", settings, door or ScriptedDoor()) as one,
        member(family, "2", settings, ScriptedDoor()) as other,
    ):
        yield Pair(one, other, family)


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


async def test_what_one_keeps_the_other_finds_though_it_is_not_written_yet(tmp_path: Path) -> None:
    found: list[httpx.Response] = []

    async def look() -> None:
        found.append(await look_up(both.other, kept["id"]))

    async with pair(tmp_path) as both, trio.open_nursery() as nursery:
        with nothing_is_written(tmp_path):
            kept = await respond(both.one)
            nursery.start_soon(look)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not found
    assert found[0].json() == kept


async def test_a_conversation_goes_on_wherever_it_is_continued(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        first = await respond(both.one, "A")
        second = await respond(both.other, "B", previous_response_id=first["id"])
        await respond(both.one, "C", previous_response_id=second["id"])
        door: Any = both.one.server.door
    told = ["user: A", "assistant: Hello, world", "user: B", "assistant: Hello, world", "user: C"]
    assert said(door.asked[-1]) == told


async def test_an_item_is_found_by_its_id_wherever_it_is_referred_to(tmp_path: Path) -> None:
    async def refer(item_id: str) -> None:
        await respond(both.other, [{"type": "item_reference", "id": item_id}, user("B")])

    async with pair(tmp_path) as both:
        door: Any = both.other.server.door
        async with trio.open_nursery() as nursery:
            with nothing_is_written(tmp_path):
                (item,) = (await respond(both.one, "A"))["output"]
                nursery.start_soon(refer, item["id"])
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not door.asked
    assert said(door.asked[-1]) == ["assistant: Hello, world", "user: B"]


async def test_what_one_sealed_the_other_opens(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        short = (await post(both.one, "A", path=f"{RESPONSES}/compact")).json()
        await respond(both.other, [*short["output"], user("B")])
        door: Any = both.other.server.door
    assert any("Hello, world" in words for words in said(door.asked[-1]))


async def test_what_nobody_keeps_is_not_found(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        refused(await look_up(both.other, "resp_nobody"), 404)


async def test_one_deletes_what_the_other_kept(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        kept = await respond(both.one)
        gone = await both.other.client.delete(f"{RESPONSES}/{kept['id']}")
        assert gone.json()["deleted"] is True
        refused(await look_up(both.one, kept["id"]), 404)


# -- what is being made ----------------------------------------------------------------------------


async def test_what_one_makes_the_other_tells_of_as_being_made_and_then_made(
    tmp_path: Path,
) -> None:
    go = trio.Event()
    door = ScriptedDoor((go, *HELLO))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        await door.until_turn()
        assert (await look_up(both.other, response_id)).json()["status"] in BEING_MADE
        go.set()
        done = await polled(both.other, response_id, "completed", "failed")
    assert (done["status"], text(done)) == ("completed", "Hello, world")


async def test_one_cancels_what_the_other_makes(tmp_path: Path) -> None:
    door = ScriptedDoor((TextDelta("Hi"), trio.Event()))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        turn = await door.until_turn()
        answer = await both.other.client.post(f"{RESPONSES}/{response_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert turn.left == "cancelled"
        assert (await look_up(both.one, response_id)).json() == answer.json()


async def test_one_deletes_what_the_other_makes(tmp_path: Path) -> None:
    door = ScriptedDoor((TextDelta("Hi"), trio.Event()))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        turn = await door.until_turn()
        assert (await both.other.client.delete(f"{RESPONSES}/{response_id}")).status_code == 200
        assert (turn.left, both.one.server.jobs) == ("cancelled", {})
        for here in (both.one, both.other):
            refused(await look_up(here, response_id), 404)


async def test_nobody_ends_what_is_another_s_through_the_other_server(tmp_path: Path) -> None:
    door = ScriptedDoor((trio.Event(),))
    async with pair(tmp_path, door, api_keys=KEYS) as both:
        response_id = await begin(both.one, headers=ANN)
        turn = await door.until_turn()
        path = f"{RESPONSES}/{response_id}"
        refused(await both.other.client.post(f"{path}/cancel", headers=BOB), 404)
        refused(await both.other.client.delete(path, headers=BOB), 404)
        assert not turn.over.is_set()
        assert (await both.other.client.delete(path, headers=ANN)).status_code == 200


async def test_what_a_dead_sibling_was_making_has_failed(tmp_path: Path) -> None:
    door = ScriptedDoor((trio.Event(),))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        await both.one.server.store.until_written()
        del both.family.servers["1"]  # as the parent does when a worker has died
        left = (await look_up(both.other, response_id)).json()
        assert (left["status"], left["error"]["code"]) == ("failed", "server_error")
        other: Any = both.other.server.door  # and what has failed may be gone on from
        await respond(both.other, "B", previous_response_id=response_id)
    assert said(other.asked[-1])[-1] == "user: B"


async def test_the_others_are_asked_once_and_only_for_what_this_one_does_not_make(
    tmp_path: Path,
) -> None:
    door = ScriptedDoor((trio.Event(),))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        await both.one.server.store.until_written()
        both.family.asked.clear()
        await look_up(both.one, response_id)
        assert both.family.asked == []
        await look_up(both.other, response_id)
        assert both.family.asked == ["makes"]
        await both.other.client.post(f"{RESPONSES}/{response_id}/cancel")
        assert both.family.asked == ["makes", "makes", "cancel"]


async def test_what_may_be_made_by_one_that_is_silent_is_neither_cancelled_nor_deleted(
    tmp_path: Path,
) -> None:
    door = ScriptedDoor((trio.Event(),))
    async with pair(tmp_path, door) as both:
        response_id = await begin(both.one)
        await polled(both.one, response_id, "in_progress")
        await both.one.server.store.until_written()
        path = f"{RESPONSES}/{response_id}"
        both.family.silent = True
        for answer in (
            await both.other.client.post(f"{path}/cancel"),
            await both.other.client.delete(path),
        ):
            assert refused(answer, 503) == ("server_is_overloaded", None)
            assert answer.headers["Retry-After"] == "5"
            assert "does not answer" in answer.json()["error"]["message"]
        assert (await look_up(both.other, response_id)).json()["status"] == "in_progress"
        both.family.silent = False
        assert (await both.other.client.delete(path)).json()["deleted"] is True
        refused(await look_up(both.one, response_id), 404)


# -- what is told ----------------------------------------------------------------------------------


async def test_health_and_metrics_tell_of_both(tmp_path: Path) -> None:
    door = ScriptedDoor((trio.Event(),))
    async with pair(tmp_path, door) as both:
        await begin(both.one)
        await door.until_turn()
        await both.other.ask()
        health = (await both.other.client.get("/healthz")).json()
        assert health == {"status": "ok", "turns": 1, "waiting": 0, "workers": 2}
        told = (await both.one.client.get("/metrics")).text.splitlines()
    assert 'proxy_turns_running{worker="1"} 1.0' in told
    assert 'proxy_turns_running{worker="2"} 0.0' in told
    chat = 'proxy_requests_total{mode="json",route="/v1/chat/completions",status="200",worker="2"}'
    assert f"{chat} 1.0" in told
    assert sum(line.startswith("# TYPE proxy_requests_total ") for line in told) == 1


async def test_a_server_alone_tells_its_metrics_without_a_worker(shared: Served) -> None:
    assert "worker" not in (await shared.client.get("/metrics")).text
    assert "workers" not in (await shared.client.get("/healthz")).json()


async def test_a_sibling_that_asks_for_what_is_not_known_is_told_so(shared: Served) -> None:
    with pytest.raises(ValueError, match="'cake'"):
        await answer_sibling(shared.server, "1", "cake", {})
