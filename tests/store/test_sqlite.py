"""Responses that are kept: found at once, by their owner only, and not for ever."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs

from pipeline.errors import UsageError
from pipeline.loose_json import Json
from pipeline.serve.memory import sqlite
from pipeline.serve.memory.sqlite import IN_MEMORY, SqliteStore, StoreLimits, open_store
from pipeline.serve.memory.stored_response import StoredResponse


def kept(number: int = 1, owner: str = "alice", **changes: Any) -> StoredResponse:
    said = {"type": "message", "id": f"msg_in{number}", "role": "user", "content": "x"}
    told: dict[str, Any] = {
        "type": "message",
        "id": f"msg_out{number}",
        "role": "assistant",
        "content": [],
    }
    response: dict[str, Any] = {"id": f"resp_{number}", "status": "completed", "output": [told]}
    return evolve(StoredResponse(f"resp_{number}", owner, response, (said,)), **changes)


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return IN_MEMORY if request.param == "memory" else str(tmp_path / "deep" / "store.sqlite3")


async def test_what_was_kept_is_found(place: str) -> None:
    async with open_store(place) as store:
        await store.put(kept(previous="resp_0"))
        assert await store.get("alice", "resp_1") == kept(previous="resp_0")
        assert await store.get("bob", "resp_1") is None
        assert await store.get("alice", "resp_2") is None


async def test_what_was_forgotten_is_gone(place: str) -> None:
    async with open_store(place) as store:
        await store.put(kept())
        assert not await store.delete("bob", "resp_1")
        assert await store.delete("alice", "resp_1")
        assert not await store.delete("alice", "resp_1")
        assert await store.get("alice", "resp_1") is None
        assert await store.items("alice", ["msg_in1"]) == {}


async def test_items_are_found_by_their_owner(place: str) -> None:
    async with open_store(place) as store:
        await store.put(kept(1))
        await store.put(kept(2, owner="bob"))
        found = await store.items("alice", ["msg_in1", "msg_out1", "msg_out2", "msg_none"])
        assert set(found) == {"msg_in1", "msg_out1"}
        assert found["msg_out1"] == kept(1).response["output"][0]


async def test_a_newer_state_replaces_an_older(place: str) -> None:
    async with open_store(place) as store:
        done = kept().response
        await store.put(kept(response={**done, "status": "in_progress", "output": []}))
        await store.put(kept())
        assert await store.get("alice", "resp_1") == kept()
        assert await store.get("alice", "resp_1") == kept()


async def test_a_file_outlives_the_store_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with open_store(str(file)) as store:
        await store.put(kept())
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600  # noqa: PTH116
    async with open_store(str(file)) as again:
        assert await again.get("alice", "resp_1") == kept()


async def test_the_oldest_leave_when_there_is_too_much(place: str) -> None:
    size = len(str(kept().response))
    async with open_store(place, StoreLimits(megabytes=size * 5 / 1_000_000)) as store:
        for number in range(20):
            await store.put(kept(number))
        found = [n for n in range(20) if await store.get("alice", f"resp_{n}") is not None]
    assert found
    assert len(found) < 10
    assert found == list(range(20 - len(found), 20))


def bytes_in(file: str) -> int:
    with closing(sqlite3.connect(file)) as database:
        (size,) = database.execute("SELECT sum(size) FROM responses").fetchone()
        return int(size)


async def test_the_bound_holds_for_all_who_write_to_a_file_and_for_those_who_find_it_full(
    tmp_path: Path,
) -> None:
    file, many = str(tmp_path / "store.sqlite3"), 3_000
    async with open_store(file) as one:
        for number in range(40):
            await one.put(kept(number))
    assert bytes_in(file) > many
    bounds = StoreLimits(megabytes=many / 1_000_000)
    async with open_store(file, bounds) as one, open_store(file, bounds) as other:
        for number in range(100, 140):
            for store in (one, other):
                await store.put(kept(number, response={"id": "x", "more": "x" * (number % 7) * 50}))
            await other.delete("alice", f"resp_{number - 3}")
            assert many / 3 < bytes_in(file) <= many


@pytest.mark.parametrize("megabytes", [1.0, 0.3])
async def test_a_write_costs_the_same_however_much_is_kept(place: str, megabytes: float) -> None:
    async def cost() -> int:
        """In hundreds of steps."""
        steps: list[int] = []
        database.set_progress_handler(lambda: steps.append(1), 100)
        await store.put(kept(9_999))
        database.set_progress_handler(None, 0)
        return len(steps)

    async with open_store(place, StoreLimits(megabytes=megabytes)) as store:
        database = store._database  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        before = await cost()
        for number in range(1_500):
            await store.put(kept(number))
        assert await cost() <= before + 5


async def test_what_is_too_old_is_not_found(place: str) -> None:
    async with open_store(place, StoreLimits(seconds=0)) as store:
        await store.put(kept())
        assert await store.get("alice", "resp_1") is None


async def test_two_servers_may_share_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "store.sqlite3")
    async with open_store(file) as one, open_store(file) as other:
        await one.put(kept())
        assert await other.get("alice", "resp_1") == kept()


async def test_what_was_deleted_while_another_made_it_does_not_come_back(tmp_path: Path) -> None:
    file = str(tmp_path / "store.sqlite3")
    async with open_store(file) as one, open_store(file) as other:
        await one.put(kept(response={"id": "resp_1", "status": "queued"}))
        await one.put(kept(response={"id": "resp_1", "status": "in_progress"}))
        assert await other.delete("alice", "resp_1")
        await one.put(kept())
        for store in (one, other):
            assert await store.get("alice", "resp_1") is None
            assert await store.items("alice", ["msg_in1", "msg_out1"]) == {}


async def test_what_was_crowded_out_while_it_was_made_is_kept_once_it_is_done(place: str) -> None:
    size = len(str(kept().response))
    async with open_store(place, StoreLimits(megabytes=size * 5 / 1_000_000)) as store:
        await store.put(kept(0, response={"id": "resp_0", "status": "in_progress"}))
        for number in range(1, 20):
            await store.put(kept(number))
        assert await store.get("alice", "resp_0") is None
        await store.put(kept(0))
        assert await store.get("alice", "resp_0") == kept(0)


async def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"this is no database, whatever its name says" * 100)
    for place in (str(broken), str(tmp_path), "/proc/no/store"):
        with pytest.raises(UsageError, match=f"PROXY_STORE={place}"):
            async with open_store(place):
                pass


async def test_a_store_that_cannot_write_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SqliteStore, stored: StoredResponse) -> None:
        raise sqlite3.OperationalError("disk full")

    async with open_store(IN_MEMORY) as store:
        with monkeypatch.context() as patched:
            patched.setattr(SqliteStore, "_write", fail)
            await store.put(kept(1))
        await store.put(kept(2))
        assert await store.get("alice", "resp_1") is None
        assert await store.get("alice", "resp_2") == kept(2)


async def test_what_is_put_by_a_request_that_is_cancelled_is_kept(place: str) -> None:
    async with open_store(place) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.put(kept())
        assert await store.get("alice", "resp_1") == kept()


async def test_a_locked_file_delays_no_response_for_long_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lock_wait = str(tmp_path / "store.sqlite3"), 0.2
    monkeypatch.setattr(sqlite, "WAIT_FOR_LOCK", lock_wait)
    async with open_store(file) as store:
        with (
            closing(sqlite3.connect(file, isolation_level=None)) as other,
            capture_logs() as logged,
        ):
            other.execute("BEGIN IMMEDIATE")
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(store.put, kept(number))
            assert trio.current_time() - begun < 4 * lock_wait
        assert len(logged) == 20
        assert {line["event"] for line in logged} == {"a response was not stored"}
        await store.put(kept())
        assert await store.get("alice", "resp_1") == kept()


def test_an_exchange_adds_its_input_and_then_its_output() -> None:
    items: list[Json] = list(kept().items)
    assert [item["id"] for item in items] == ["msg_in1", "msg_out1"]


# -- what is kept and not shown --------------------------------------------------------------------


async def test_what_is_withheld_from_the_client_is_part_of_the_items(place: str) -> None:
    async with open_store(place) as store:
        await store.put(kept(withheld={"msg_out1": "sealed"}))
        found = await store.get("alice", "resp_1")
        assert found is not None
        assert found == kept(withheld={"msg_out1": "sealed"})
        assert "encrypted_content" not in found.response["output"][0]
        items = await store.items("alice", ["msg_in1", "msg_out1"])
    assert items["msg_out1"]["encrypted_content"] == found.items[1]["encrypted_content"] == "sealed"
    assert "encrypted_content" not in items["msg_in1"]


async def test_an_item_counts_as_it_was_kept_first(place: str) -> None:
    async with open_store(place) as store:
        await store.put(kept(withheld={"msg_out1": "sealed"}))
        await store.put(kept(2, input_items=tuple(kept().response["output"])))
        assert (await store.items("alice", ["msg_out1"]))["msg_out1"].get("encrypted_content")
        await store.delete("alice", "resp_2")
        assert (await store.items("alice", ["msg_out1"]))["msg_out1"].get("encrypted_content")


async def test_a_file_of_another_layout_is_begun_anew(tmp_path: Path) -> None:
    place = str(tmp_path / "store.sqlite3")
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE responses (id TEXT PRIMARY KEY, owner TEXT NOT NULL)")
        database.execute("INSERT INTO responses VALUES ('resp_1', 'alice')")
    database.close()
    async with open_store(place) as store:
        assert await store.get("alice", "resp_1") is None
        await store.put(kept())
    async with open_store(place) as store:
        assert await store.get("alice", "resp_1") == kept()


async def test_an_item_whose_id_is_none_is_never_found(place: str) -> None:
    odd: Json = {"type": "message", "id": {}, "role": "user", "content": "x"}
    async with open_store(place) as store:
        await store.put(kept(input_items=(odd,)))
        assert set(await store.items("alice", ["msg_out1"])) == {"msg_out1"}
