"""The environment as settings."""

from __future__ import annotations

from inspect import get_annotations
from typing import Any

import attrs
import pytest

from pipeline.assembly import Settings, recipe
from pipeline.errors import UsageError
from pipeline.turn import OutputMode, Tool, Turn
from stages.cap_tool_calls import CapOptions, CapToolCalls
from stages.cut_after_tools import CutAfterTools, CutOptions
from stages.dedup_tool_calls import DedupOptions, DedupToolCalls


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings() == Settings(
        stop_after_tools=True,
        stop_after_tools_mode="burst",
        stop_after_tools_grace_ms=300,
        suppress_tail_after_tools=True,
        tool_block_dedup=False,
        tool_block_max=0,
        unknown_tool_policy="text",
        output_mode="auto",
    )


@pytest.mark.parametrize(
    ("variable", "value", "name", "read"),
    [
        ("PROXY_STOP_AFTER_TOOLS", "false", "stop_after_tools", False),
        ("PROXY_STOP_AFTER_TOOLS", "0", "stop_after_tools", False),
        ("PROXY_STOP_AFTER_TOOLS", " Yes ", "stop_after_tools", True),
        ("PROXY_STOP_AFTER_TOOLS_MODE", "FIRST", "stop_after_tools_mode", "first"),
        ("PROXY_STOP_AFTER_TOOLS_GRACE_MS", "50", "stop_after_tools_grace_ms", 50),
        ("PROXY_SUPPRESS_TAIL_AFTER_TOOLS", "off", "suppress_tail_after_tools", False),
        ("PROXY_TOOL_BLOCK_DEDUP", "true", "tool_block_dedup", True),
        ("PROXY_TOOL_BLOCK_MAX", "2", "tool_block_max", 2),
        ("PROXY_UNKNOWN_TOOL_POLICY", "fail", "unknown_tool_policy", "fail"),
        ("PROXY_OUTPUT_MODE", "obsidian-xml", "output_mode", "obsidian-xml"),
        ("PROXY_TOOL_BLOCK_DELIMITER", r"\n--\t\\n", "tool_block_delimiter", "\n--\t\\n"),
        ("PROXY_REASONING_CONTENT", "no", "reasoning_content", False),
        ("CODEX_DUMP_SSE", "1", "dump_events", "1"),
        ("CODEX_DUMP_SSE", r"C:\new\table", "dump_events", r"C:\new\table"),
    ],
)
def test_a_variable_is_read(variable: str, value: str, name: str, read: object) -> None:
    assert getattr(Settings.from_env({variable: value}), name) == read


@pytest.mark.parametrize(
    ("variable", "value", "choices"),
    [
        ("PROXY_STOP_AFTER_TOOLS", "maybe", "true or false"),
        ("PROXY_STOP_AFTER_TOOLS_MODE", "last", "one of burst, first"),
        ("PROXY_STOP_AFTER_TOOLS_GRACE_MS", "soon", "a whole number from 0 to 3600000"),
        ("PROXY_TOOL_BLOCK_MAX", "1.5", "a whole number from 0 to 1024"),
        ("CODEX_IDLE_TIMEOUT_S", "a while", "a number from 1 to 86400"),
        ("PROXY_UNKNOWN_TOOL_POLICY", "ignore", "one of text, call, fail"),
        ("PROXY_OUTPUT_MODE", "xml", "one of auto, openai-json, obsidian-xml"),
        ("PROXY_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_names_the_flag_the_value_and_the_choices(
    variable: str, value: str, choices: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Settings.from_env({variable: value})
    assert str(raised.value) == f"{variable} must be {choices} (got {value})"


def test_an_empty_variable_is_an_unset_one() -> None:
    assert Settings.from_env({"PROXY_TOOL_BLOCK_MAX": ""}) == Settings()


def test_an_empty_argument_is_meant() -> None:
    assert Settings.from_env({}, tool_block_delimiter="").tool_block_delimiter == ""


def test_an_argument_wins_over_its_variable() -> None:
    environment = {"PROXY_TOOL_BLOCK_MAX": "2"}
    assert Settings.from_env(environment, tool_block_max=3).tool_block_max == 3
    assert Settings.from_env(environment, tool_block_max=None).tool_block_max == 2


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="tool_blok_max"):
        Settings.from_env({}, tool_blok_max=3)


def test_every_setting_explains_itself() -> None:
    for field in attrs.fields(Settings):
        assert field.metadata["env"].isupper()
        assert len(field.metadata["help"]) > 10


TOOLS = (Tool("a"),)


@pytest.mark.parametrize(
    ("operator", "request_mode", "tools", "mode"),
    [
        ("auto", None, (), "auto"),
        ("auto", None, TOOLS, "openai-json"),
        ("obsidian-xml", None, TOOLS, "obsidian-xml"),
        ("obsidian-xml", "openai-json", TOOLS, "openai-json"),
        ("auto", "obsidian-xml", (), "obsidian-xml"),
    ],
)
def test_the_output_mode_of_a_request(
    operator: str, request_mode: OutputMode | None, tools: tuple[Tool, ...], mode: str
) -> None:
    settings = Settings.from_env({"PROXY_OUTPUT_MODE": operator})
    turn = Turn(tools=tools, output_mode=request_mode)
    assert settings.output_mode_for(turn) == mode


@pytest.mark.parametrize(
    ("both", "own", "wish", "mode"),
    [
        ("auto", "", None, "openai-json"),
        ("obsidian-xml", "", None, "obsidian-xml"),
        ("obsidian-xml", "auto", None, "openai-json"),
        ("auto", "obsidian-xml", None, "obsidian-xml"),
        ("auto", "obsidian-xml", "openai-json", "openai-json"),
    ],
)
def test_the_responses_api_has_an_output_mode_of_its_own(
    both: str, own: str, wish: OutputMode | None, mode: str
) -> None:
    given = {"PROXY_OUTPUT_MODE": both, "PROXY_RESPONSES_OUTPUT_MODE": own}
    settings = Settings.from_env(given)
    turn = settings.on_responses(Turn(tools=TOOLS, output_mode=wish))
    assert settings.output_mode_for(turn) == mode


def test_a_disabled_cut_is_shown_as_off() -> None:
    assert Settings(stop_after_tools=False).effective_cut_mode == "off"
    assert Settings(stop_after_tools_mode="first").effective_cut_mode == "first"


# -- where settings stand ------------------------------------------------------------------------

OPTIONS = Settings.__mro__[1:-1]


def declared_in(name: str) -> str:
    """The module of the class that declares a setting."""
    (module,) = [c.__module__ for c in Settings.__mro__ if name in get_annotations(c)]
    return module


def test_a_stages_settings_stand_in_its_own_file() -> None:
    stages = {name: factory() for name, factory in recipe(Settings())}
    found = [field for field in attrs.fields(Settings) if field.metadata["stage"]]
    assert {field.metadata["stage"] for field in found} == {"calls", "cut", "dedup", "cap"}
    for field in found:
        assert declared_in(field.name) == type(stages[field.metadata["stage"]]).__module__


def test_every_setting_is_declared_by_the_part_that_it_sets() -> None:
    modules = {declared_in(field.name) for field in attrs.fields(Settings)}
    assert "pipeline.config.settings" not in modules
    assert len(modules) > 12


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.__name__)
def test_an_option_class_alone_has_the_same_defaults(options: type[attrs.AttrsInstance]) -> None:
    usual = attrs.asdict(Settings())
    alone = attrs.asdict(options())
    assert alone
    assert alone == {name: usual[name] for name in alone}


def test_a_stage_that_is_given_no_options_is_as_the_defaults_say() -> None:
    assert vars(CutAfterTools()) == vars(CutAfterTools(CutOptions()))
    assert vars(DedupToolCalls()) == vars(DedupToolCalls(DedupOptions()))
    assert vars(CapToolCalls()) == vars(CapToolCalls(CapOptions()))


@pytest.mark.parametrize(
    ("stage", "chosen"),
    [
        ("cut", {"stop_after_tools": False}),
        ("cut", {"stop_after_tools_mode": "first"}),
        ("cut", {"stop_after_tools_grace_ms": 9}),
        ("cut", {"suppress_tail_after_tools": False}),
        ("dedup", {"tool_block_dedup": True}),
        ("cap", {"tool_block_max": 9}),
        ("cap", {"stop_after_tools": False}),
    ],
)
def test_a_setting_reaches_its_stage(stage: str, chosen: dict[str, Any]) -> None:
    usual, same, other = (
        vars(dict(recipe(settings))[stage]())
        for settings in (Settings(), Settings(), Settings(**chosen))
    )
    assert usual == same
    assert usual != other
