"""The store in an SQLite file, bounded in size and age."""

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
from pipeline.serve.memory.stored_response import StoredResponse

IN_MEMORY: Final = ":memory:"
WAIT_FOR_LOCK: Final = 5.0
"""Seconds that a write waits for other processes, and for other writes of this one."""
LAYOUT: Final = 2
OTHER_LAYOUT: Final = f"""
DROP TABLE IF EXISTS responses;
DROP TABLE IF EXISTS items;
PRAGMA user_version = {LAYOUT};
"""
"""A file with another layout is emptied."""
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
"""Every write updates the total: adding up all rows would take longer and longer."""
SUBTRACT: Final = """
UPDATE total SET size = size - coalesce((SELECT size FROM responses WHERE id = ?), 0)
"""
"""Subtract a row that is about to be replaced or deleted."""
Result = TypeVar("Result")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@frozen(slots=False)
class StoreOptions:
    """Where responses are stored, how many and how long, and the key that seals compactions."""

    store: str = flag(
        "PROXY_STORE",
        "~/.local/state/codex-sluice/responses.sqlite3",
        "the file in which responses are stored for later requests; :memory: keeps them until "
        "the server stops (the default of `serve --demo`); several workers then share a file in "
        "/dev/shm or in the folder for temporary files",
    )
    store_mb: float = flag(
        "PROXY_STORE_MB",
        256.0,
        "megabytes of responses that are stored; the oldest are deleted first, 0 stores none",
        bounds=(0, 1_000_000),
    )
    store_days: float = flag(
        "PROXY_STORE_DAYS",
        30.0,
        "days that a response is stored; 0 stores none",
        bounds=(0, 3_650),
    )
    seal_key_file: str = flag(
        "PROXY_SEAL_KEY_FILE",
        "",
        "the file with the key that seals compacted conversations, created if missing; default: "
        "seal.key beside the store",
    )


@frozen
class StoreLimits:
    """How much is stored, and for how long."""

    megabytes: float = 256.0
    seconds: float = 30 * 86_400.0


class SqliteStore:
    """Reads and writes in a thread, one operation at a time.

    Callers find only their own responses: a wrong owner gives the same result as a wrong id.
    """

    def __init__(self, database: sqlite3.Connection, limits: StoreLimits) -> None:
        self._database = database
        self._limits = limits
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._unfinished: set[str] = set()
        """Responses that will be written again; one that is missing then has been deleted."""

    # -- the interface ---------------------------------------------------------------------------

    async def put(self, stored: StoredResponse) -> None:
        """Store a response, or its newer state; afterwards every process finds it.

        A write that fails is logged; the client gets its answer all the same.
        """
        problem = ""
        # Shielded: a client that disconnects at the end of its answer may still request it later.
        with trio.move_on_after(WAIT_FOR_LOCK, shield=True) as waiting:
            try:
                await self._in_thread(partial(self._write, stored))
            except sqlite3.Error as error:
                problem = str(error)
        if waiting.cancelled_caught:
            problem = "too many other writes are waiting"
        if problem:
            _log.error("a response was not stored", response=stored.response_id, error=problem)

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        found = await self._in_thread(partial(self._read, response_id))
        return found if found is not None and found.owner == owner else None

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; whether there was one."""
        if await self.get(owner, response_id) is None:
            return False
        await self._in_thread(partial(self._remove, [response_id]))
        return True

    async def items(self, owner: str, item_ids: Sequence[str]) -> dict[str, Json]:
        """The items that are found, by id."""
        return await self._in_thread(partial(self._read_items, owner, item_ids))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(work, limiter=self._one_at_a_time)

    # -- in the thread ---------------------------------------------------------------------------

    def _write(self, stored: StoredResponse) -> None:
        now = time.time()
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")  # the check and the write are one transaction
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
        self._database.execute(SUBTRACT, (stored.response_id,))
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
        """Delete what is too old, and then the oldest while the total is over the limit."""
        old = self._database.execute(
            "SELECT id FROM responses WHERE kept < ?", (now - self._limits.seconds,)
        ).fetchall()
        limit = int(self._limits.megabytes * 1_000_000)
        (total,) = self._database.execute("SELECT size FROM total").fetchone()
        if total > limit:
            by_age = self._database.execute("SELECT id, size FROM responses ORDER BY kept, id")
            for response_id, size in by_age:  # stops early: there may be very many
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
        self._database.executemany(SUBTRACT, keys)
        self._database.executemany("DELETE FROM responses WHERE id = ?", keys)
        self._database.executemany("DELETE FROM items WHERE response = ?", keys)

    def _read(self, response_id: str) -> StoredResponse | None:
        row: Any = self._database.execute(
            "SELECT owner, previous, response, input, withheld FROM responses "
            "WHERE id = ? AND kept >= ?",
            (response_id, time.time() - self._limits.seconds),
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
                # A client that sends an item again may omit parts of it: the first copy counts.
                "WHERE items.id = ? AND items.owner = ? ORDER BY kept LIMIT 1",
                (item_id, owner),
            ).fetchone()
            if row is not None:
                found[item_id] = as_json(_decode(row[0]))
        return found


@asynccontextmanager
async def open_store(path: str, limits: StoreLimits | None = None) -> AsyncGenerator[SqliteStore]:
    """The store in a file, or in memory."""
    database = await trio.to_thread.run_sync(_connect, path)
    try:
        yield SqliteStore(database, limits or StoreLimits())
    finally:
        database.close()


def _connect(path: str) -> sqlite3.Connection:
    try:
        if path != IN_MEMORY:
            file = Path(path).expanduser()
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # it holds conversations
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
    """Create the tables, in one transaction: several processes may start at once."""
    database.execute("BEGIN IMMEDIATE")
    kept = database.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
    for script in ("" if kept else OTHER_LAYOUT, SCHEMA):
        for statement in filter(str.strip, script.split(";")):
            database.execute(statement)
    database.commit()


async def prepare_store(path: str) -> None:
    """Create the file before several processes open it at once; UsageError if that fails.

    SQLite can switch a file to its journal mode only while no other process has it open.
    """

    def prepare() -> None:
        _connect(path).close()

    await trio.to_thread.run_sync(prepare)
