"""The recipe: named, ordered, editable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pipeline.events import Event
from pipeline.recipe import Pipeline
from pipeline.stage import AsyncStage, Stage
from pipeline.turn import Turn


class Pass(Stage):
    def feed(self, event: Event) -> Sequence[Event]:
        return (event,)


class Shout(Pass):
    pass


class AsyncDouble(AsyncStage):
    pass


def test_a_recipe_is_edited_by_name_and_the_old_one_stays() -> None:
    recipe = Pipeline([("noise", Pass), ("dedup", Pass), ("cap", Pass)])
    edited = (
        recipe.replace("dedup", Shout).insert_after("noise", "loud", Shout).without("cap")
    ).insert_before("noise", "first", Pass)
    assert edited.names == ("first", "noise", "loud", "dedup")
    assert dict(edited.steps)["dedup"] is Shout
    assert recipe.names == ("noise", "dedup", "cap")


EDITS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "replace": lambda recipe: recipe.replace("nose", Pass),
    "without": lambda recipe: recipe.without("nose"),
    "insert_before": lambda recipe: recipe.insert_before("nose", "new", Pass),
    "insert_after": lambda recipe: recipe.insert_after("nose", "new", Pass),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_unknown_name_lists_the_names(edit: Callable[[Pipeline], Pipeline]) -> None:
    with pytest.raises(LookupError, match=r"'nose'.*noise, cap"):
        edit(Pipeline([("noise", Pass), ("cap", Pass)]))


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two stages are named 'a'"):
        Pipeline([("a", Pass), ("b", Pass)]).insert_after("b", "a", Shout)


def test_a_stage_object_instead_of_a_factory_is_refused() -> None:
    with pytest.raises(TypeError, match="give the class"):
        Pipeline([("a", Pass())])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def test_process_refuses_a_stage_that_awaits() -> None:
    with pytest.raises(TypeError, match="'double'"):
        Pipeline([("double", AsyncDouble)]).process([])


def test_a_stage_learns_what_the_client_asked_before_it_is_fed() -> None:
    told: list[str] = []

    class Listening(Pass):
        def begin(self, turn: Turn) -> None:
            told.append(turn.model)

    Pipeline([("listening", Listening)]).process([], Turn(model="m"))
    assert told == ["m"]


def test_the_guard_is_always_on_and_always_last() -> None:
    recipe = Pipeline([("a", Pass)], guard=Shout)
    assert recipe.insert_before("guard", "b", Pass).names == ("a", "b", "guard")
    edits: list[Callable[[], Pipeline]] = [
        lambda: recipe.without("guard"),
        lambda: recipe.replace("guard", Pass),
        lambda: recipe.insert_after("guard", "b", Pass),
    ]
    for edit in edits:
        with pytest.raises(LookupError, match="always on and always last"):
            edit()
