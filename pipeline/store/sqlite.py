"""The store as an embedded database: one file, bounded in size and age."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
import trio
from attrs import frozen

from pipeline.errors import UsageError
from pipeline.loose_json import Json, as_json, text_of
from pipeline.options import server_flag as flag
from pipeline.store.responses import StoredResponse

IN_MEMORY: Final = ":memory:"
WAIT_FOR_LOCK: Final = 5.0
"""How many seconds a write waits for other processes, and for other writes of this one."""
LAYOUT: Final = 2
OTHER_LAYOUT: Final = f"""
DROP TABLE IF EXISTS responses;
DROP TABLE IF EXISTS items;
PRAGMA user_version = {LAYOUT};
"""
"""What a file of another version kept is forgotten, as it would be in time."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kept REAL NOT NULL, size INTEGER NOT NULL,
    previous TEXT, response BLOB NOT NULL, input BLOB NOT NULL, withheld BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON responses (kept);
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL, owner TEXT NOT NULL, response TEXT NOT NULL, item BLOB NOT NULL,
    PRIMARY KEY (id, owner, response)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (response);
CREATE TABLE IF NOT EXISTS total (size INTEGER NOT NULL);
DELETE FROM total;
INSERT INTO total SELECT coalesce(sum(size), 0) FROM responses;
"""
"""The total is kept by all who write: to add up everything would take them longer and longer."""
LESS: Final = """
UPDATE total SET size = size - coalesce((SELECT size FROM responses WHERE id = ?), 0)
"""
"""What is about to be replaced or deleted no longer counts."""
Result = TypeVar("Result")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@frozen(slots=False)
class StoreOptions:
    """Where responses are kept, how much and how long, and the key that seals them."""

    store: str = flag(
        "PROXY_STORE",
        "~/.local/state/codex-sluice/responses.sqlite3",
        "where responses are kept for clients that come back to them; :memory: keeps them until "
        "the server ends, and `serve --demo` does so; several workers share a file for that, in "
        "/dev/shm or among the temporary files",
    )
    store_mb: float = flag(
        "PROXY_STORE_MB",
        256.0,
        "how many megabytes of responses are kept; the oldest leave first, 0 keeps none",
        bounds=(0, 1_000_000),
    )
    store_days: float = flag(
        "PROXY_STORE_DAYS",
        30.0,
        "how long a response is kept; 0 keeps none",
        bounds=(0, 3_650),
    )
    seal_key_file: str = flag(
        "PROXY_SEAL_KEY_FILE",
        "",
        "the key that compacted conversations are sealed with, made when there is none; by default "
        "seal.key beside the store",
    )


@frozen
class Bounds:
    """How much is kept, and for how long."""

    megabytes: float = 256.0
    seconds: float = 30 * 86_400.0


class SqliteStore:
    """Reads and writes in one thread at a time."""

    def __init__(self, database: sqlite3.Connection, bounds: Bounds) -> None:
        self._database = database
        self._bounds = bounds
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._unfinished: set[str] = set()
        """What was written and will be again: if it is gone by then, somebody has deleted it."""

    # -- the interface ---------------------------------------------------------------------------

    async def put(self, stored: StoredResponse) -> None:
        problem = ""
        # A client that leaves at the end of its answer may still come back to it.
        with trio.move_on_after(WAIT_FOR_LOCK, shield=True) as waiting:
            try:
                await self._in_thread(partial(self._write, stored))
            except sqlite3.Error as error:
                problem = str(error)
        if waiting.cancelled_caught:
            problem = "too many others wait to be written"
        if problem:
            _log.error("a response was not kept", response=stored.response_id, error=problem)

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        found = await self._in_thread(partial(self._read, response_id))
        return found if found is not None and found.owner == owner else None

    async def delete(self, owner: str, response_id: str) -> bool:
        if await self.get(owner, response_id) is None:
            return False
        await self._in_thread(partial(self._remove, [response_id]))
        return True

    async def items(self, owner: str, item_ids: Sequence[str]) -> dict[str, Json]:
        return await self._in_thread(partial(self._read_items, owner, item_ids))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(work, limiter=self._one_at_a_time)

    # -- in the thread ---------------------------------------------------------------------------

    def _write(self, stored: StoredResponse) -> None:
        now = time.time()
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")  # what is looked for stays as it is found
            if stored.response_id not in self._unfinished or self._has(stored.response_id):
                self._write_row(stored, now)
            evicted = self._evict(now)
        self._unfinished.discard(stored.response_id)
        if stored.unfinished:
            self._unfinished.add(stored.response_id)
        self._unfinished.difference_update(evicted)

    def _write_row(self, stored: StoredResponse, now: float) -> None:
        parts = (stored.response, stored.input_items, stored.withheld)
        written = [_encode(part) for part in parts]
        items = [
            (item_id, stored.owner, stored.response_id, _encode(item))
            for item in stored.items
            if (item_id := text_of(item.get("id")))
        ]
        size = sum(map(len, written)) + sum(len(item[-1]) for item in items)
        row = (stored.response_id, stored.owner, now, size)
        self._database.execute(LESS, (stored.response_id,))
        self._database.execute(
            "INSERT OR REPLACE INTO responses VALUES (?,?,?,?,?,?,?,?)",
            (*row, stored.previous, *written),
        )
        self._database.executemany("INSERT OR REPLACE INTO items VALUES (?,?,?,?)", items)
        self._database.execute("UPDATE total SET size = size + ?", (size,))

    def _has(self, response_id: str) -> bool:
        row = self._database.execute("SELECT 1 FROM responses WHERE id = ?", (response_id,))
        return row.fetchone() is not None

    def _evict(self, now: float) -> list[str]:
        """Let go of what is too old, and of the oldest while there is too much."""
        old = self._database.execute(
            "SELECT id FROM responses WHERE kept < ?", (now - self._bounds.seconds,)
        ).fetchall()
        limit = int(self._bounds.megabytes * 1_000_000)
        (total,) = self._database.execute("SELECT size FROM total").fetchone()
        if total > limit:
            by_age = self._database.execute("SELECT id, size FROM responses ORDER BY kept, id")
            for response_id, size in by_age:  # as far as need be: there may be very many
                old.append((response_id,))
                total -= size
                if total <= limit:
                    break
            by_age.close()
        evicted = [response_id for (response_id,) in old]
        self._delete_rows(evicted)
        return evicted

    def _remove(self, response_ids: list[str]) -> None:
        with self._database:
            self._delete_rows(response_ids)

    def _delete_rows(self, response_ids: list[str]) -> None:
        keys = [(response_id,) for response_id in response_ids]
        self._database.executemany(LESS, keys)
        self._database.executemany("DELETE FROM responses WHERE id = ?", keys)
        self._database.executemany("DELETE FROM items WHERE response = ?", keys)

    def _read(self, response_id: str) -> StoredResponse | None:
        row: Any = self._database.execute(
            "SELECT owner, previous, response, input, withheld FROM responses "
            "WHERE id = ? AND kept >= ?",
            (response_id, time.time() - self._bounds.seconds),
        ).fetchone()
        if row is None:
            return None
        owner, previous, *written = row
        response, given, withheld = map(_decode, written)
        return StoredResponse(
            response_id, owner, dict(as_json(response)), tuple(given), previous, withheld
        )

    def _read_items(self, owner: str, item_ids: Sequence[str]) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for item_id in item_ids:
            row: Any = self._database.execute(
                "SELECT item FROM items JOIN responses ON responses.id = items.response "
                # Who sends an item again may leave some of it out: it counts as it was kept first.
                "WHERE items.id = ? AND items.owner = ? ORDER BY kept LIMIT 1",
                (item_id, owner),
            ).fetchone()
            if row is not None:
                found[item_id] = as_json(_decode(row[0]))
        return found


@asynccontextmanager
async def open_store(path: str, bounds: Bounds | None = None) -> AsyncGenerator[SqliteStore]:
    """The store in a file, or one that lives as long as we do."""
    database = await trio.to_thread.run_sync(_connect, path)
    try:
        yield SqliteStore(database, bounds or Bounds())
    finally:
        database.close()


def _connect(path: str) -> sqlite3.Connection:
    try:
        if path != IN_MEMORY:
            file = Path(path).expanduser()
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # it holds what was said
            path = str(file)
        database = sqlite3.connect(path, timeout=WAIT_FOR_LOCK, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        _lay_out(database)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"PROXY_STORE={path} cannot be used: {error}; it takes a file, or {IN_MEMORY}"
        ) from None
    return database


def _lay_out(database: sqlite3.Connection) -> None:
    """Make the tables. Of several processes that start at once, one does it, in one step."""
    database.execute("BEGIN IMMEDIATE")
    kept = database.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
    for script in ("" if kept else OTHER_LAYOUT, SCHEMA):
        for statement in filter(str.strip, script.split(";")):
            database.execute(statement)
    database.commit()


async def prepare_store(path: str) -> None:
    """Make the file ready for processes that open it all at once; UsageError says why it cannot be.

    A file changes over to its journal only while nobody else has it open.
    """

    def prepare() -> None:
        _connect(path).close()

    await trio.to_thread.run_sync(prepare)
