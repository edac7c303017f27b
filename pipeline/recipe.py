"""A pipeline: an editable recipe of stages, and the ways to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias, TypeVar, cast

import trio
from attrs import evolve, field, frozen

from pipeline.chain import Chain, merged, nowhere, open_chain, respond
from pipeline.events import Burst, Event
from pipeline.ledger import Ledger
from pipeline.segment import Segment, Stages
from pipeline.stage import AsyncStage, Incoming, Sink, Source, Stage, Write
from pipeline.turn import Turn

StageFactory: TypeAlias = Callable[[], Stage | AsyncStage]
Result = TypeVar("Result")
GUARD = "guard"


def _checked(steps: Iterable[tuple[str, StageFactory]]) -> tuple[tuple[str, StageFactory], ...]:
    steps = tuple(steps)
    names = [name for name, _ in steps]
    for name, factory in steps:
        if names.count(name) > 1:
            raise ValueError(f"two stages are named {name!r}; every name must be unique")
        if not callable(factory):
            raise TypeError(
                f"stage {name!r}: give the class, or a function that makes the stage, and not "
                f"{factory!r}: a stage serves one turn, so every run makes its own"
            )
    return steps


@frozen
class Pipeline:
    """An ordered, named, editable recipe of stages. Editing gives a new recipe.

    `guard` is the stage that is always on and always last: no edit can remove it or come after it.
    """

    steps: tuple[tuple[str, StageFactory], ...] = field(default=(), converter=_checked)
    guard: StageFactory | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self)

    def __iter__(self) -> Iterator[tuple[str, StageFactory]]:
        yield from self.steps
        if self.guard is not None:
            yield GUARD, self.guard

    def replace(self, name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with another stage under a name."""
        at = self._find(name)
        return evolve(self, steps=(*self.steps[:at], (name, factory), *self.steps[at + 1 :]))

    def insert_before(self, name: str, new_name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with one more stage, before a named one."""
        at = len(self.steps) if self.guard and name == GUARD else self._find(name)
        return self._insert(at, new_name, factory)

    def insert_after(self, name: str, new_name: str, factory: StageFactory) -> Pipeline:
        """The same recipe with one more stage, after a named one."""
        return self._insert(self._find(name) + 1, new_name, factory)

    def without(self, name: str) -> Pipeline:
        """The same recipe less one stage."""
        at = self._find(name)
        return evolve(self, steps=self.steps[:at] + self.steps[at + 1 :])

    def _insert(self, at: int, name: str, factory: StageFactory) -> Pipeline:
        return evolve(self, steps=(*self.steps[:at], (name, factory), *self.steps[at:]))

    def _find(self, name: str) -> int:
        if self.guard is not None and name == GUARD:
            raise LookupError(
                f"{GUARD!r} is always on and always last; insert_before({GUARD!r}, …)"
            )
        if name in self.names:
            return self.names.index(name)
        known = ", ".join(self.names) or "none at all"
        raise LookupError(f"no stage is named {name!r}; the stages are: {known}")

    # -- running ---------------------------------------------------------------------------------

    def stages(self, turn: Turn, ledger: Ledger | None = None) -> list[Stage | AsyncStage]:
        """The stages of one turn, ready to be fed, their books opened in the ledger."""
        stages: list[Stage | AsyncStage] = []
        for name, factory in self:
            stage = factory()
            stage.ledger.name = name
            stage.begin(turn)
            stages.append(stage)
            if ledger is not None:
                ledger.stages.append(stage.ledger)
        return stages

    def pure_stages(self, turn: Turn, ledger: Ledger | None = None) -> list[Stage]:
        """The same, where nothing can be awaited; TypeError if one of them does."""
        pure: list[Stage] = []
        for stage in self.stages(turn, ledger):
            if isinstance(stage, AsyncStage):
                raise TypeError(f"this cannot await, and {stage.ledger.name!r} does; use run()")
            pure.append(stage)
        return pure

    def process(
        self, events: Iterable[Event], turn: Turn | None = None, *, ledger: Ledger | None = None
    ) -> list[Event]:
        """Put events through the recipe at once, without trio: for tests and quick looks."""
        turn, ledger = turn or Turn(), ledger or Ledger()
        segment = Segment(_Each(events), Stages(self.pure_stages(turn, ledger)))
        out: list[Event] = []
        try:
            while True:
                out += cast("Burst", segment.receive_nowait())
        except trio.EndOfChannel:
            ledger.delivered += len(out)
            return out

    def open(
        self,
        source: Source,
        turn: Turn | None = None,
        *,
        ledger: Ledger | None = None,
        fuse: bool = False,
    ) -> AbstractAsyncContextManager[Chain]:
        """Open a source with the stages of this recipe on top of it.

        Each stage gets a task of its own, and zero-buffer channels link them:

            source ═▶ segment ═▶ channel ═▶ segment ═▶ channel ═▶ … ═▶ writer
                      (stage)     task      (stage)     task

        With `fuse`, stages that never await share one segment, which runs in the writer's task.
        The events, the books and the moment of every decision are the same; only tasks and
        channels differ:

            source ═▶ segment (stage, stage, stage, …) ═▶ writer
        """
        turn = turn or Turn()
        ledger = Ledger() if ledger is None else ledger
        return open_chain(source, turn, self.stages(turn, ledger), ledger, fuse=fuse)

    def open_choices(
        self, source: Source, turn: Turn, ledgers: Sequence[Ledger]
    ) -> AbstractAsyncContextManager[Chain]:
        """As many fused chains as there are ledgers, as one: the choices of one answer."""
        opening = [
            self.open(source, turn.for_choice(number), ledger=ledger, fuse=True)
            for number, ledger in enumerate(ledgers)
        ]
        return opening[0] if len(opening) == 1 else merged(opening)

    async def run(  # noqa: PLR0913
        self,
        source: Source,
        sink: Sink[Result],
        turn: Turn | None = None,
        *,
        ledger: Ledger | None = None,
        fuse: bool = False,
        write: Write | None = None,
    ) -> Result:
        """Run a whole turn: from a source, through the stages, into a sink; return its result."""
        async with self.open(source, turn, ledger=ledger, fuse=fuse) as chain:
            await respond(chain, sink, write or nowhere)
            chain.delivered()
        return sink.result()


class _Each(Incoming):
    """Events that are there, one burst each."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = iter(events)

    def receive_nowait(self) -> Burst:
        for event in self._events:
            return (event,)
        raise trio.EndOfChannel
