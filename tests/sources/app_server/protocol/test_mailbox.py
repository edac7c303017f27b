"""Where a turn's messages wait for it, unless it takes them as they come."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from sources.app_server.protocol.mailbox import Delivery, Letter, Mailbox, MailboxClosedError

A, B, C = list[Letter]([b"a"]), list[Letter]([b"b"]), list[Letter]([b"c"])


class Waiter:
    """Takes from a mailbox again and again, and at once whatever is in `wanted`."""

    def __init__(self, mailbox: Mailbox, wanted: bytes) -> None:
        self._mailbox = mailbox
        self._wanted = wanted
        self.got: list[str] = []

    def _at_once(self, delivery: Delivery) -> bool:
        wanted = all(letter in self._wanted for letter in delivery.letters)  # type: ignore[operator]
        if wanted:
            self.got += [f"{letter!r} at once" for letter in delivery.letters]
        return wanted

    async def run(self) -> None:
        while True:
            for delivery in await self._mailbox.take(self._at_once):
                self.got += [f"{letter!r}" for letter in delivery.letters]


async def test_what_comes_is_offered_to_whoever_waits_and_else_kept() -> None:
    mailbox = Mailbox()
    waiter = Waiter(mailbox, b"bc")
    mailbox.put(B, 1.0)  # nobody waits yet
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter.run)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.put(A, 2.0)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.put(B, 3.0)
        nursery.cancel_scope.cancel()
    assert waiter.got == ["b'b'", "b'a'", "b'b' at once"]


async def test_nothing_overtakes_what_somebody_was_woken_for() -> None:
    mailbox = Mailbox()
    waiter = Waiter(mailbox, b"bc")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter.run)
        await trio.testing.wait_all_tasks_blocked()
        for letters in (B, A, B, C):  # all before anybody can run
            mailbox.put(letters, 1.0)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.put(C, 2.0)
        nursery.cancel_scope.cancel()
    assert waiter.got == ["b'b' at once", "b'a'", "b'b'", "b'c'", "b'c' at once"]


async def test_who_no_longer_waits_is_offered_nothing() -> None:
    mailbox = Mailbox()
    waiter = Waiter(mailbox, b"b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    mailbox.put(B, 1.0)
    assert waiter.got == []
    assert mailbox.empty() == [Delivery((b"b",), 1.0)]


async def test_an_end_is_not_overtaken_either() -> None:
    mailbox = Mailbox()
    waiter = Waiter(mailbox, b"b")
    with pytest.RaisesGroup(pytest.RaisesExc(MailboxClosedError, match="gone")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.run)
            await trio.testing.wait_all_tasks_blocked()
            mailbox.close("gone")
            mailbox.put(B, 1.0)
    assert waiter.got == []


def wrong(_: Delivery) -> bool:
    raise ZeroDivisionError("a bug")


async def test_a_mistake_is_raised_where_it_was_waited_for() -> None:
    mailbox = Mailbox()

    async def put() -> None:
        await trio.testing.wait_all_tasks_blocked()
        mailbox.put(A, 1.0)  # raises nothing: this is the reader of all turns
        mailbox.put(B, 1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await mailbox.take(wrong)
    assert mailbox.empty() == [Delivery((b"b",), 1.0)]


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_mistake_waits_for_whoever_was_just_cancelled_but_not_for_a_follow_up(
    emptied: bool,
) -> None:
    mailbox = Mailbox()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailbox.take, wrong)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            mailbox.put(A, 1.0)
    if emptied:  # as a held turn's mailbox is, before it goes on
        assert mailbox.empty() == []
        mailbox.put(B, 2.0)
        assert await mailbox.take() == [Delivery((b"b",), 2.0)]
    else:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await mailbox.take()
