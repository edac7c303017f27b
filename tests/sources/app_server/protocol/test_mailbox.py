"""The queue between a connection's reader and a turn: in order, stamped, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sources.app_server.protocol.mailbox import (
    MOST_TAKEN,
    Delivery,
    Letter,
    Mailbox,
    MailboxClosedError,
)
from sources.app_server.protocol.rpc import Notification


def letters(*words: str) -> list[Letter]:
    return [word.encode() for word in words]


def words(taken: Sequence[Delivery]) -> list[str]:
    found = (letter for delivery in taken for letter in delivery.letters)
    return [letter.decode() for letter in found if isinstance(letter, bytes)]


def test_everything_is_taken_in_order_and_each_delivery_keeps_its_own_time() -> None:
    mailbox = Mailbox()
    mailbox.put(letters("a", "b"), 5.0)
    mailbox.put(letters("c"), 6.0)
    deliveries = mailbox.take_nowait()
    assert [(words([delivery]), delivery.at) for delivery in deliveries] == [
        (["a", "b"], 5.0),
        (["c"], 6.0),
    ]
    assert len(mailbox) == 0
    with pytest.raises(trio.WouldBlock):
        mailbox.take_nowait()


@given(st.lists(st.integers(1, 2 * MOST_TAKEN), max_size=8))
def test_at_most_so_many_are_taken_together_and_none_is_lost_or_moved_in_time(
    sizes: list[int],
) -> None:
    mailbox = Mailbox()
    expected: list[tuple[str, float]] = []
    for at, size in enumerate(sizes):
        named = [f"{at}-{number}" for number in range(size)]
        mailbox.put(letters(*named), float(at))
        expected += [(name, float(at)) for name in named]
    got: list[tuple[str, float]] = []
    while mailbox:
        deliveries = mailbox.take_nowait()
        taken = [(word, d.at) for d in deliveries for word in words([d])]
        assert 0 < len(taken) <= MOST_TAKEN
        got += taken
    assert got == expected
    assert all(a <= b for (_, a), (_, b) in pairwise(got))


async def test_a_turn_that_waits_is_woken_by_the_next_letter() -> None:
    mailbox = Mailbox()
    taken: list[str] = []

    async def take() -> None:
        await mailbox.wait()
        taken.extend(words(mailbox.take_nowait()))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await trio.testing.wait_all_tasks_blocked()
            mailbox.put(letters("a"), 0.0)
            mailbox.put(letters("b"), 0.0)
    assert taken == ["a", "b"]


async def test_a_wait_that_is_cancelled_loses_nothing_and_another_may_follow() -> None:
    mailbox = Mailbox()
    with trio.move_on_after(0):
        await mailbox.wait()
    mailbox.put(letters("a"), 0.0)
    assert words(mailbox.take_nowait()) == ["a"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await mailbox.wait()
        mailbox.notify()


def test_an_end_comes_after_what_was_put_in_before_and_nothing_after_it() -> None:
    mailbox = Mailbox()
    mailbox.put(letters("a"), 0.0)
    mailbox.close("gone")
    mailbox.close("again")
    mailbox.put(letters("b"), 0.0)
    assert words(mailbox.take_nowait()) == ["a"]
    with pytest.raises(MailboxClosedError, match="gone"):
        mailbox.take_nowait()


def test_a_mailbox_that_overflows_keeps_what_it_had_and_then_ends() -> None:
    full, other = Mailbox(most_bytes=25), Mailbox(most_bytes=25)
    for word in ("ten bytes.", "ten bytes,", "ten bytes!", "ten bytes?"):
        full.put(letters(word), 0.0)
    other.put(letters("ten bytes."), 0.0)
    assert words(full.take_nowait()) == ["ten bytes.", "ten bytes,"]
    with pytest.raises(MailboxClosedError, match="too slowly"):
        full.take_nowait()
    assert words(other.take_nowait()) == ["ten bytes."]


def test_what_was_taken_makes_room() -> None:
    mailbox = Mailbox(most_bytes=2 * MOST_TAKEN)
    for _ in range(5):
        mailbox.put(letters(*["x"] * (MOST_TAKEN + 1)), 0.0)
        assert len(words(mailbox.take_nowait())) == MOST_TAKEN
        assert len(words(mailbox.take_nowait())) == 1
    assert not mailbox.closed


async def test_the_first_reason_of_a_closed_mailbox_stays_and_wakes_its_turn() -> None:
    mailbox = Mailbox()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailbox.wait)
            await trio.testing.wait_all_tasks_blocked()
            mailbox.close("the first")
            mailbox.close("the second")
    with pytest.raises(MailboxClosedError, match="the first"):
        mailbox.take_nowait()


def test_the_size_of_a_message_that_was_read_already_counts_too() -> None:
    mailbox = Mailbox(most_bytes=25)
    mailbox.put([Notification("m", {}, {}, 20)], 0.0)
    mailbox.put([Notification("m", {}, {}, 20)], 0.0)
    assert len(mailbox) == 1
    assert mailbox.closed
