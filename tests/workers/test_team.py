"""A team of workers: what is made of those that do not answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from pipeline.settings import Settings
from pipeline.workers.line import Line, LineCutError
from pipeline.workers.orders import Orders
from pipeline.workers.team import SOON_ENOUGH, Member, Team
from tests.serve.scripted import served


class Prompt:
    """The line to a worker that answers at once."""

    def __init__(self) -> None:
        self.heard = 0
        self.asked: list[str] = []

    async def ask(self, what: str, /, **_: Any) -> Any:
        self.asked.append(what)
        self.heard += 1
        return {"makes": False, "health": {"turns": 1, "waiting": 0}}.get(what)


class Silent(Prompt):
    """The line to one that lives, and says nothing."""

    async def ask(self, what: str, /, **_: Any) -> Any:
        self.asked.append(what)
        await trio.sleep_forever()


class Gone(Prompt):
    """A line that is cut."""

    async def ask(self, what: str, /, **_: Any) -> Any:
        raise LineCutError


def team(*lines: Prompt) -> tuple[Team, Member]:
    made = Team(1 + len(lines), Orders(0, Settings(), (), -1), [])
    asker, *others = made._members  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for member, line in zip(others, lines, strict=True):
        member._line = cast("Line", line)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return made, asker


@pytest.mark.parametrize(
    ("others", "answers"),
    [
        ((Prompt, Prompt), [False, False]),
        ((Prompt, Gone), [False]),
        ((Prompt, Silent), [False, True]),
    ],
    ids=["all answer", "one is gone", "one is silent"],
)
async def test_who_does_not_say_may_be_making_it(
    others: tuple[type[Prompt], ...], answers: list[bool], autojump_clock: trio.testing.MockClock
) -> None:
    asked, asker = team(*(other() for other in others))
    assert sorted(await asked.ask_others(asker, "makes", {"id": "resp_1"})) == answers


async def test_who_missed_an_answer_is_not_waited_for_until_it_is_heard_of_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    line = Silent()
    asked, asker = team(line)
    waits: list[float] = []
    for what in ("written", "makes", "health", "cancel", "heard", "makes"):
        begun = trio.current_time()
        if what == "heard":
            line.heard += 1
            continue
        await asked.ask_others(asker, what, {"id": "resp_1"})
        waits.append(trio.current_time() - begun)
    assert waits == [SOON_ENOUGH, 0.0, 0.0, 0.0, SOON_ENOUGH]
    assert line.asked == ["written", "makes"]


async def test_a_short_wait_in_vain_is_held_against_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    line = Silent()
    asked, asker = team(line)
    await asked.ask_others(asker, "health", {})
    await asked.ask_others(asker, "written", {})
    assert line.asked == ["health", "written"]


async def test_who_asks_for_the_health_waits_for_nobody_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked, asker = team(Prompt(), Silent())
    begun = trio.current_time()
    assert len(await asked.ask_others(asker, "health", {})) == 1
    assert trio.current_time() - begun < 1.0


async def test_a_worker_that_does_not_answer_is_told_of() -> None:
    async with served(workers=3) as here:
        health = (await here.client.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert health["reason"] == "only 1 of 3 workers answer"
