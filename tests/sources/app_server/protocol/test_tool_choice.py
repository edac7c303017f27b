"""A choice of tools on a backend that has no parameter for it: tools left out, and one rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import ToolCall
from pipeline.loose_json import Json
from pipeline.turn import NamedTool, Tool, ToolChoice, Turn
from sources.app_server.protocol.capabilities import Capabilities
from sources.app_server.protocol.thread import ThreadPlan
from sources.app_server.turn.kept import KeepOptions
from sources.demo.chaos_child import ChaosChild
from tests.support.chaos_turns import play, text, turn_of

TOOLS = (Tool("localSearch"), Tool("exec_command"))
NATIVE = Capabilities(dynamic_tools=True, inject_items=True)


def thread_start(choice: ToolChoice, can: Capabilities = NATIVE, **fields: Any) -> Json:
    turn = evolve(Turn(tools=TOOLS, tool_choice=choice), **fields)
    return ThreadPlan(turn, can, "/nowhere").thread_start()


def names(params: Json) -> list[str]:
    return [tool["name"] for tool in params.get("dynamicTools", [])]


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("auto", ["localSearch", "client_exec_command"]),
        ("required", ["localSearch", "client_exec_command"]),
        ("none", []),
        (NamedTool("localSearch"), ["localSearch"]),
        (NamedTool("exec_command"), ["client_exec_command"]),
        (NamedTool("unheard_of"), []),
    ],
)
def test_only_the_tools_that_may_be_called_are_offered(
    choice: ToolChoice, offered: list[str]
) -> None:
    assert names(thread_start(choice)) == offered


@pytest.mark.parametrize(
    ("choice", "rule"),
    [
        ("required", "You must call one of your tools, or several of them, now."),
        (NamedTool("localSearch"), "You must call the tool `localSearch` now."),
        (NamedTool("exec_command"), "You must call the tool `client_exec_command` now."),
    ],
)
def test_a_choice_is_one_rule_behind_the_instructions(choice: ToolChoice, rule: str) -> None:
    told = thread_start(choice, instructions="Be brief.")["developerInstructions"]
    assert told.startswith(f"Be brief.\n\n{rule}")


@pytest.mark.parametrize("choice", ["auto", "none", NamedTool("unheard_of")])
def test_where_nothing_must_be_called_there_is_no_rule(choice: ToolChoice) -> None:
    assert "developerInstructions" not in thread_start(choice)


def test_a_backend_told_in_words_reads_of_the_chosen_tool_alone_and_by_its_own_name() -> None:
    told = thread_start(NamedTool("exec_command"), Capabilities())["developerInstructions"]
    assert '"name":"exec_command"' in told
    assert "localSearch" not in told
    assert "You must call the tool `exec_command` now." in told
    assert "developerInstructions" not in thread_start("none", Capabilities())


async def called(child: ChaosChild, choice: ToolChoice) -> Turn:
    """Play a turn that calls a tool and is held; the follow-up that its client sends."""
    asked = turn_of("ONECALL", tool_choice=choice)
    events = await play(child.pool, asked, recipe=assembly.recipe(Settings()))
    (call,) = [event for event in events if isinstance(event, ToolCall)]
    await child.until(lambda: len(child.pool.kept) == 1)
    made = {"type": "function_call", "call_id": call.call_id, "name": call.name}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    return evolve(asked, items=(*asked.items, made | {"arguments": call.arguments}, result))


@pytest.mark.parametrize("choice", ["required", NamedTool("localSearch")])
@pytest.mark.parametrize("then", [None, "auto", "none"])
async def test_a_held_turn_is_continued_under_the_same_choice_only(
    tmp_path: Path, choice: ToolChoice, then: ToolChoice | None
) -> None:
    """Its thread holds the rule that a tool must be called: who lifts it gets another thread."""
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        follow_up = await called(child, choice)
        follow_up = evolve(follow_up, tool_choice=then or choice)
        assert text(await play(child.pool, follow_up)) == "The tool said: rain"
        turns = child.told("turn/start")
        assert len(turns) == (1 if then is None else 2)
        rules = ["developerInstructions" in told for told in child.told("thread/start")[2:]]
        assert rules == ([True] if then is None else [True, False])


async def test_a_call_of_a_tool_that_was_kept_out_is_not_held_for(tmp_path: Path) -> None:
    """Codex does not know it and answers it itself: nobody waits for an output."""
    async with ChaosChild(tmp_path, keep=KeepOptions()).running() as child:
        await play(
            child.pool,
            turn_of("ONECALL !slow=0.05", tool_choice=NamedTool("readNote")),
            recipe=assembly.recipe(Settings()),
        )
        await child.until(lambda: child.told("thread/delete"))
        assert len(child.pool.kept) == 0
