"""However a turn is left, the backend is told once to stop, its thread goes, time is bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import ToolCall
from pipeline.recipe import Pipeline
from pipeline.turn import Turn
from sources.app_server.protocol.client import CALMING, MOST_LEAVING, AppServerClient
from sources.app_server.turn import session as session_module
from sources.app_server.turn.kept import KeepOptions
from sources.app_server.turn.place import Bounds
from sources.app_server.turn.source import AppServerSource
from sources.demo.chaos_child import ChaosChild
from tests.support.chaos_turns import failure, play, text, turn_of

QUICK = Bounds(first_event=0.15, idle=0.15, total=3.0)


class Waiting:
    """A client that has read something and waits for more."""

    def __init__(self) -> None:
        self.reads = trio.Event()

    async def read(self, child: ChaosChild, turn: Turn) -> None:
        async with Pipeline().open(AppServerSource(child.pool), turn) as chain:
            async for _ in chain:
                self.reads.set()


@asynccontextmanager
async def playing(child: ChaosChild, words: str) -> AsyncGenerator[Waiting]:
    """A turn under way; when the block is left, so does its client."""
    client = Waiting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.read, child, turn_of(words))
        yield client
        nursery.cancel_scope.cancel()


async def until_let_go(child: ChaosChild, turns: int = 1) -> None:
    await child.until(lambda: len(child.told("thread/delete")) >= turns, 4)


def ends(child: ChaosChild) -> list[str]:
    """What the backend was told to end, in order."""
    ending = ("turn/interrupt", "thread/delete", "thread/archive")
    return [message["method"] for message in child.log() if message.get("method") in ending]


# -- interrupts ----------------------------------------------------------------------------------


async def test_a_turn_that_ends_by_itself_is_not_interrupted(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        await play(child.pool, "TEXT")
        await until_let_go(child)
        assert ends(child) == ["thread/delete"]


async def test_the_cutter_interrupts_once_and_the_thread_is_deleted(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        events = await play(child.pool, "BURST", recipe=assembly.recipe(Settings()))
        assert len([event for event in events if isinstance(event, ToolCall)]) == 3
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]
        (started,), (stopped,) = child.told("turn/start"), child.told("turn/interrupt")
        assert started["threadId"] == stopped["threadId"]


async def test_a_client_that_leaves_in_the_middle_interrupts_once(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        async with playing(child, "HANG") as client:
            await client.reads.wait()
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("thread/start", ["thread/delete"]),
        ("thread/inject_items", ["thread/delete"]),
        ("turn/start", ["turn/interrupt", "thread/delete"]),
    ],
)
async def test_a_client_that_leaves_before_the_turn_has_started_leaves_nothing_behind(
    tmp_path: Path, method: str, told: list[str]
) -> None:
    async with ChaosChild(tmp_path, "--delay", f"{method}=0.15").running() as child:
        before = len(child.told(method))
        async with playing(child, "HANG"):
            await child.until(lambda: len(child.told(method)) > before)
        await until_let_go(child)
        assert ends(child) == told


async def test_a_thread_that_is_opened_long_after_its_client_left_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LETTING_GO", 0.05)
    async with ChaosChild(tmp_path, "--delay", "thread/start=0.4").running() as child:
        client = (await child.pool.lease()).client
        before = len(child.told("thread/start"))
        async with playing(child, "HANG"):
            await child.until(lambda: len(child.told("thread/start")) > before)
        await child.until(lambda: client.load == 0)
        assert ends(child) == []  # nobody waits for it, and it is not forgotten
        await until_let_go(child)
        assert ends(child) == ["thread/delete"]


async def test_a_thread_that_is_opened_after_its_turn_gave_up_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LETTING_GO", 0.05)
    async with ChaosChild(tmp_path, "--delay", "thread/start=0.4").running() as child:
        assert failure(await play(child.pool, "TEXT", QUICK)).status == 504
        await until_let_go(child)
        assert ends(child) == ["thread/delete"]


async def test_a_client_that_leaves_before_there_is_a_backend_is_gone(tmp_path: Path) -> None:
    child = ChaosChild(tmp_path)
    async with playing(child, "HANG"):
        await trio.testing.wait_all_tasks_blocked()
    assert child.log() == []


async def test_clients_that_leave_one_after_the_other_interrupt_once_each(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, "--always", "late").running() as child:
        for number in (1, 2, 3):
            async with playing(child, "HANG") as client:
                await client.reads.wait()
            await until_let_go(child, number)
        stopped = [told["turnId"] for told in child.told("turn/interrupt")]
        assert len(stopped) == len(set(stopped)) == 3
        assert text(await play(child.pool, "TEXT")) == "Hello, wörld 🌍!"


async def test_a_client_that_is_cancelled_twice_leaves_once(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        with trio.CancelScope() as outer:
            async with playing(child, "HANG") as client:
                await client.reads.wait()
                outer.cancel()
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]


async def test_what_comes_after_an_interrupt_belongs_to_nobody(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        client = (await child.pool.lease()).client
        async with playing(child, "HANG !late") as reader:
            await reader.reads.wait()
        await until_let_go(child)
        assert text(await play(child.pool, "TEXT")) == "Hello, wörld 🌍!"
        assert client.counters["for no open thread"] >= 4
        refused = [m for m in child.log() if "error" in m and "method" not in m]
        assert [message["error"]["code"] for message in refused] == [-32601]


# -- a backend that does not help ----------------------------------------------------------------


@pytest.mark.parametrize("fault", ["--hang", "--refuse"])
async def test_a_thread_is_deleted_though_its_interrupt_is_not_answered_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Codex refuses to interrupt a turn that has just ended, and may not answer at all."""
    monkeypatch.setattr(session_module, "LETTING_GO", 0.2)
    async with ChaosChild(tmp_path, fault, "turn/interrupt").running() as child:
        client = (await child.pool.lease()).client
        async with playing(child, "HANG") as reader:
            await reader.reads.wait()
        await child.until(lambda: client.load == 0, 4)
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]


async def test_a_thread_whose_turn_was_refused_is_deleted(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, "--refuse", "turn/start").running() as child:
        assert failure(await play(child.pool, "TEXT")).status == 400
        await until_let_go(child)
        assert ends(child) == ["thread/delete"]


async def test_a_backend_that_lets_nothing_go_does_not_hold_up_its_end(
    tmp_path: Path,
) -> None:
    flags = ("--hang", "turn/interrupt", "--hang", "thread/delete")
    with trio.fail_after(4):
        async with ChaosChild(tmp_path, *flags).running() as child:
            async with playing(child, "HANG") as client:
                await client.reads.wait()
            await child.until(lambda: child.told("turn/interrupt"))


async def test_a_client_that_leaves_while_its_history_is_half_sent_harms_nobody(
    tmp_path: Path,
) -> None:
    """What is written into a pipe cannot be taken back: the rest of the line must follow."""
    async with ChaosChild(tmp_path, "--deaf", "thread/start=0.3").running() as child:
        before = len(child.told("thread/start"))
        with trio.move_on_after(4) as limit:
            async with playing(child, "x" * 1_000_000):
                await child.until(lambda: len(child.told("thread/start")) > before)
                with trio.move_on_after(0.1):  # the pipe is full by now, and nobody reads
                    await trio.sleep_forever()
            assert text(await play(child.pool, "TEXT")) == "Hello, wörld 🌍!"
        assert not limit.cancelled_caught
        assert not [message for message in child.log() if "unreadable" in message]


# -- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ("SILENT", Bounds(first_event=0.1)),
        ("HANG", Bounds(idle=0.1)),
        ("TEXT !slow=0.2", Bounds(first_event=5.0, idle=0.1)),
        ("HANG", Bounds(total=0.2)),
        ("LONG !slow=0.02", Bounds(total=0.2)),
        ("!endless", Bounds(total=0.2)),
        ("!retrying", Bounds(first_event=0.1)),
        ("HANG !retrying", Bounds(first_event=0.1, idle=0.1)),
    ],
)
async def test_a_turn_that_takes_too_long_is_a_504_and_is_interrupted(
    tmp_path: Path, words: str, bounds: Bounds
) -> None:
    async with ChaosChild(tmp_path).running() as child:
        found = failure(await play(child.pool, words, bounds))
        assert (found.status, found.code) == (504, "timeout")
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]
        assert text(await play(child.pool, "TEXT")) == "Hello, wörld 🌍!"


@pytest.mark.parametrize("method", ["thread/start", "thread/inject_items", "turn/start"])
async def test_the_bounds_hold_from_the_very_first_request_on(tmp_path: Path, method: str) -> None:
    async with ChaosChild(tmp_path, "--hang", method).running() as child:
        found = failure(await play(child.pool, "TEXT", QUICK))
        assert (found.status, found.code) == (504, "timeout")


async def test_a_backend_that_does_not_read_is_a_504_too(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, "--deaf", "thread/start=30").running() as child:
        found = failure(await play(child.pool, "x" * 1_000_000, QUICK))
        assert (found.status, found.code) == (504, "timeout")


async def test_a_client_that_never_reads_does_not_keep_its_turn_for_ever(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path).running() as child:
        source = AppServerSource(child.pool, Bounds(total=0.2))
        async with Pipeline().open(source, turn_of("LONG !slow=0.01")):
            await child.until(lambda: child.told("turn/interrupt"))
        await until_let_go(child)


# -- held turns ----------------------------------------------------------------------------------


async def called(child: ChaosChild, words: str) -> Turn:
    """Play a turn that calls a tool and is held; the follow-up that its client sends."""
    asked = turn_of(words)
    events = await play(child.pool, asked, recipe=assembly.recipe(Settings()))
    (call,) = [event for event in events if isinstance(event, ToolCall)]
    await child.until(lambda: len(child.pool.kept) == 1)
    made = {"type": "function_call", "call_id": call.call_id, "name": call.name}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    return evolve(asked, items=(*asked.items, made | {"arguments": call.arguments}, result))


async def test_a_turn_with_calls_is_held_and_its_follow_up_continues_it(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        follow_up = await called(child, "ONECALL")
        assert text(await play(child.pool, follow_up)) == "The tool said: rain"
        await until_let_go(child)
        assert (len(child.told("turn/start")), ends(child)) == (1, ["thread/delete"])


async def test_a_held_turn_is_interrupted_once_when_its_time_is_over(tmp_path: Path) -> None:
    options = KeepOptions(seconds=0.1)
    async with ChaosChild(tmp_path, keep=options).running() as child:
        await called(child, "ONECALL")
        assert ends(child) == []
        await until_let_go(child)
        assert ends(child) == ["turn/interrupt", "thread/delete"]


async def test_a_follow_up_that_comes_while_its_turn_is_let_go_starts_anew(tmp_path: Path) -> None:
    options, flags = KeepOptions(seconds=0.1), ("--delay", "turn/interrupt=0.3")
    async with ChaosChild(tmp_path, *flags, keep=options).running() as child:
        follow_up = await called(child, "ONECALL")
        await child.until(lambda: child.told("turn/interrupt"))
        assert text(await play(child.pool, follow_up, QUICK)) == "The tool said: rain"
        await until_let_go(child, 2)
        deleted = {told["threadId"] for told in child.told("thread/delete")}
        assert (len(deleted), len(child.told("turn/interrupt"))) == (2, 1)


async def test_a_turn_that_ended_while_it_was_held_is_not_continued(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        counters = (await child.pool.lease()).client.counters
        follow_up = await called(child, "ONECALL !impatient=0.1")
        await child.until(lambda: counters["got turn/completed"])
        assert text(await play(child.pool, follow_up, QUICK)) == "The tool said: rain"


async def test_a_client_that_leaves_with_its_calls_half_read_is_not_held_for(
    tmp_path: Path,
) -> None:
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        async with playing(child, "CALL localSearch {}\nWAIT 60\nCALL readNote {}") as client:
            await client.reads.wait()
        await until_let_go(child)
        assert (len(child.pool.kept), ends(child)) == (0, ["turn/interrupt", "thread/delete"])


async def test_a_turn_is_not_held_for_calls_that_its_client_never_got(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        recipe = assembly.recipe(Settings(tool_block_max=1))
        events = await play(child.pool, "BURST", recipe=recipe)
        assert len([event for event in events if isinstance(event, ToolCall)]) == 1
        await until_let_go(child)
        assert (len(child.pool.kept), ends(child)) == (0, ["turn/interrupt", "thread/delete"])


async def test_a_held_turn_is_forgotten_when_its_backend_dies(tmp_path: Path) -> None:
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        await called(child, "ONECALL")
        await play(child.pool, "TEXT !die")
        await child.until(lambda: len(child.pids) == 2 and child.server.ready)
        assert len(child.pool.kept) == 0


async def test_a_new_turn_waits_while_too_many_old_ones_are_let_go_of(
    autojump_clock: trio.abc.Clock,
) -> None:
    client = AppServerClient(Silent())
    for _ in range(MOST_LEAVING + 1):
        client.begin_leaving()
    began = trio.current_time()
    await client.until_calm()
    assert trio.current_time() - began == pytest.approx(CALMING)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(client.until_calm)
        await trio.testing.wait_all_tasks_blocked()
        client.end_leaving()
    assert trio.current_time() - began == pytest.approx(CALMING)


class Silent:
    """A connection on which nothing is ever said."""

    async def receive(self) -> list[bytes]:
        await trio.sleep_forever()

    async def send(self, message: bytes) -> None:
        return

    def send_now(self, message: bytes) -> bool:
        return False

    def memory(self) -> int | None:
        return None

    async def aclose(self) -> None:
        return
