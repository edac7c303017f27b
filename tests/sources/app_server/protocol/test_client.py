"""The client of an app-server on a wire of our own: who is answered, who waits, who never does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.turn import Turn
from sources.app_server.protocol import client as client_module
from sources.app_server.protocol.capabilities import Capabilities, probe
from sources.app_server.protocol.client import (
    DECLINED,
    BackendGoneError,
    BackendSilentError,
)
from sources.app_server.protocol.mailbox import Mailbox, MailboxClosedError
from sources.app_server.protocol.rpc import OVERLOADED, RpcError, ServerRequest
from sources.app_server.protocol.thread import ThreadPlan
from sources.app_server.turn.place import Place
from sources.app_server.turn.reading import message_of
from sources.app_server.turn.session import LATEST, LETTING_GO, Session
from tests.support.app_server_wire import connected

APPROVAL = "item/commandExecution/requestApproval"


def delta(thread: str, words: str) -> dict[str, Any]:
    return {"method": "item/agentMessage/delta", "params": {"threadId": thread, "delta": words}}


def question(method: str, thread: str, identity: int | str = 0) -> dict[str, Any]:
    return {"method": method, "id": identity, "params": {"threadId": thread}}


# -- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", DECLINED)
@pytest.mark.parametrize("thread", ["known", "unknown"])
async def test_what_the_backend_may_not_do_is_declined_whoever_asks(
    method: str, thread: str
) -> None:
    asked: list[ServerRequest] = []
    async with connected() as (wire, client):
        client.on_request = asked.append
        client.open_mailbox("known", Mailbox())
        wire.say(question(method, thread, "ask-1"))
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent == [{"id": "ask-1", "result": DECLINED[method]}]
        assert [request.method for request in asked] == [method]


async def test_a_question_nobody_knows_is_refused_or_its_turn_would_hang() -> None:
    async with connected() as (wire, _):
        wire.say(question("something/new", "", 3))
        await trio.testing.wait_all_tasks_blocked()
        (answer,) = wire.sent
        assert (answer["id"], answer["error"]["code"]) == (3, -32601)


async def test_a_tool_call_is_its_turns_to_answer_and_refused_when_there_is_none() -> None:
    async with connected() as (wire, client):
        mailbox = Mailbox()
        client.open_mailbox("known", mailbox)
        wire.say(question("item/tool/call", "known", 1), question("item/tool/call", "gone", 2))
        await mailbox.wait()
        (delivery,) = mailbox.take_nowait()
        (request,) = delivery.letters
        await trio.testing.wait_all_tasks_blocked()
        assert [answer["id"] for answer in wire.sent] == [2]
        assert isinstance(request, ServerRequest)
        client.answer(request, {"success": True})
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent[-1] == {"id": 1, "result": {"success": True}}


async def test_the_reader_reads_on_while_an_answer_cannot_be_sent() -> None:
    """A backend may stop reading until we read: were we to wait for it, both would for ever."""
    async with connected() as (wire, client):
        mailbox = Mailbox()
        client.open_mailbox("t", mailbox)
        wire.gate = trio.Event()
        wire.say(question(APPROVAL, "t"))
        await trio.testing.wait_all_tasks_blocked()
        wire.say(delta("t", "on"))
        await trio.testing.wait_all_tasks_blocked()
        letters = [
            message_of(letter)["method"]
            for delivery in mailbox.take_nowait()
            for letter in delivery.letters
        ]
        assert letters == [APPROVAL, "item/agentMessage/delta"]


async def test_a_turn_may_leave_while_its_question_is_declined() -> None:
    async with connected() as (wire, client):
        client.open_mailbox("t", Mailbox())
        wire.gate = trio.Event()
        wire.say(delta("t", "a"), question(APPROVAL, "t"))
        await trio.testing.wait_all_tasks_blocked()
        client.close_mailbox("t")
        wire.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        mailbox = Mailbox()
        client.open_mailbox("u", mailbox)
        wire.say(delta("u", "b"))
        with trio.fail_after(30):
            await mailbox.wait()
        assert [len(delivery.letters) for delivery in mailbox.take_nowait()] == [1]


async def test_a_backend_that_asks_and_is_gone_ends_the_connection_and_nothing_else() -> None:
    async with connected() as (wire, client):
        client.open_mailbox("t", Mailbox())
        wire.say(question(APPROVAL, "t"))
        wire.open = False
        with trio.fail_after(30):
            await client.until_gone()
        assert client.gone in ("nobody is there", "it hung up")


# -- answers -------------------------------------------------------------------------------------


async def test_answers_find_their_requests_in_any_order() -> None:
    async with connected() as (wire, client):
        one, two = client.begin("a", {}), client.begin("b", {})
        await trio.testing.wait_all_tasks_blocked()
        first, second = (message["id"] for message in wire.sent)
        wire.say({"id": second, "result": {"n": 2}}, {"id": first, "result": {"n": 1}})
        wire.say({"id": first, "result": {"n": 3}})
        assert [await one.wait(), await two.wait()] == [{"n": 1}, {"n": 2}]
        await trio.testing.wait_all_tasks_blocked()
        assert client.counters["an answer to nothing"] == 1


async def test_a_request_that_is_not_answered_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (_, client):
        start = trio.current_time()
        with pytest.raises(BackendSilentError, match=r"model/list was not answered within 7 s"):
            await client.request("model/list", {}, timeout=7.0)
        assert trio.current_time() == pytest.approx(start + 7.0)


async def test_a_request_that_cannot_be_sent_is_given_up_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client):
        wire.gate = trio.Event()
        with trio.fail_after(60), pytest.raises(BackendSilentError):
            await client.request("model/list", {}, timeout=7.0)


def busy(times: int, method: str = "") -> Callable[[dict[str, Any]], Iterable[Any]]:
    """A backend that is overloaded for so many requests."""
    left = times

    def answer(message: dict[str, Any]) -> Iterable[Any]:
        nonlocal left
        if left and message["method"].startswith(method):
            left -= 1
            error = {"code": OVERLOADED, "message": "Server overloaded; retry later."}
            yield {"id": message["id"], "error": error}
        else:
            yield {"id": message["id"], "result": {"thread": {"id": "t"}}}

    return answer


async def test_an_overloaded_backend_is_asked_again_with_growing_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client):
        wire.on_send = busy(2)
        times: list[float] = [trio.current_time()]
        assert await client.request("model/list", {}) == {"thread": {"id": "t"}}
        times.append(trio.current_time())
        assert len(wire.sent) == 3
        assert 0.1 <= times[1] - times[0] <= 1.0


async def test_a_backend_that_stays_overloaded_is_a_503_in_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client):
        wire.on_send = busy(100)
        with pytest.raises(RpcError) as raised:
            await client.request("model/list", {})
        assert raised.value.failure.status == 503
        assert 2 <= len(wire.sent) <= 6


async def test_an_overloaded_backend_is_not_taken_for_one_that_can_do_things(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A probe learns from the refusal of a wrong type; overload refuses everything."""
    async with connected() as (wire, client):
        wire.on_send = busy(100, "thread/start")
        with pytest.raises(RpcError) as raised:
            await probe(client)
        assert raised.value.code == OVERLOADED


# -- the end -------------------------------------------------------------------------------------


async def test_everybody_who_waits_is_told_at_once_when_the_connection_ends() -> None:
    async with connected() as (wire, client):
        mailbox = Mailbox()
        client.open_mailbox("t", mailbox)
        pending = client.begin("turn/start", {})
        wire.hang_up()
        with trio.fail_after(30):
            with pytest.raises(BackendGoneError, match="it hung up"):
                await pending.wait()
            with pytest.raises(MailboxClosedError, match="it hung up"):
                mailbox.take_nowait()
        with pytest.raises(BackendGoneError, match="it hung up"):
            client.begin("turn/start", {})
        late = Mailbox()
        client.open_mailbox("u", late)
        with pytest.raises(MailboxClosedError, match="it hung up"):
            late.take_nowait()


async def test_a_backend_that_does_not_read_at_all_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "MOST_OUTGOING", 1000)
    async with connected() as (wire, client):
        wire.gate = trio.Event()
        first = client.begin("thread/inject_items", {"x": "y" * 900})
        second = client.begin("thread/inject_items", {"x": "y" * 900})
        with trio.fail_after(5):
            for pending in (first, second):
                with pytest.raises(BackendGoneError, match="does not read"):
                    await pending.wait()


async def test_a_connection_in_use_is_idle_when_its_last_turn_has_left() -> None:
    async with connected() as (_, client):
        client.enter()
        client.enter()
        idle: list[str] = []

        async def wait() -> None:
            await client.until_idle()
            idle.append("idle")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            client.leave()
            await trio.testing.wait_all_tasks_blocked()
            assert (idle, client.load) == ([], 1)
            client.leave()
        assert (idle, client.load) == (["idle"], 0)


async def test_a_backend_that_invents_methods_does_not_fill_the_books() -> None:
    async with connected() as (wire, client):
        wire.say(*({"method": f"invented/{number}"} for number in range(5000)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(client.counters) < 1000
        assert sum(client.counters.values()) >= 5000


async def test_a_request_that_was_given_up_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (_, client):
        for _ in range(20):
            with pytest.raises(BackendSilentError):
                await client.request("model/list", {}, timeout=0.01)
        assert client._pending == {}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def test_a_thread_that_is_never_opened_is_not_waited_for_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (_, client), trio.open_nursery() as nursery:
        place = Place(client, Capabilities(dynamic_tools=True), ".", nursery)
        for _ in range(5):
            session = Session(place, Mailbox())
            with pytest.raises(BackendSilentError):
                await session.start(ThreadPlan(Turn(), place.capabilities, "."))
            nursery.start_soon(session.let_go)
        await trio.sleep(LETTING_GO + 1)
        assert client.load == 0
        await trio.sleep(LATEST)
        assert client._pending == {}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def test_a_thread_whose_opening_was_given_up_is_deleted_when_it_opens(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (wire, client), trio.open_nursery() as nursery:
        place = Place(client, Capabilities(delete_thread=True), ".", nursery)
        session = Session(place, Mailbox())
        with pytest.raises(BackendSilentError):
            await session.start(ThreadPlan(Turn(), place.capabilities, "."))
        nursery.start_soon(session.let_go)
        await trio.sleep(LATEST / 2)
        (asked,) = wire.sent
        wire.say({"id": asked["id"], "result": {"thread": {"id": "late"}}})
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent[-1]["method"] == "thread/delete"
        assert wire.sent[-1]["params"] == {"threadId": "late"}
        wire.say({"id": wire.sent[-1]["id"], "result": {}})
