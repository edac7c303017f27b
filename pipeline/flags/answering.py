"""How a turn's events become an answer."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from attrs import frozen

from pipeline import flags
from pipeline.flags import Escaped
from pipeline.turn import OutputMode

CutMode: TypeAlias = Literal["burst", "first"]
UnknownToolPolicy: TypeAlias = Literal["text", "call", "fail"]
ResponsesOutputMode: TypeAlias = Literal["", "auto", "openai-json", "obsidian-xml"]

flag = partial(flags.flag, group="pipeline")


@frozen(slots=False)
class AnswerFlags:
    """The stages' settings, and how their output is written."""

    stop_after_tools: bool = flag(
        "PROXY_STOP_AFTER_TOOLS",
        True,
        "end the generation once the model has made its calls",
        stage="cut",
    )
    stop_after_tools_mode: CutMode = flag(
        "PROXY_STOP_AFTER_TOOLS_MODE",
        "burst",
        "end after the whole burst of calls, or after the first call",
        stage="cut",
    )
    stop_after_tools_grace_ms: int = flag(
        "PROXY_STOP_AFTER_TOOLS_GRACE_MS",
        300,
        "how long a burst waits for its next call, restarted by each call",
        stage="cut",
    )
    suppress_tail_after_tools: bool = flag(
        "PROXY_SUPPRESS_TAIL_AFTER_TOOLS",
        True,
        "drop the text after the last call; text between calls always stays",
        stage="cut",
    )
    tool_block_dedup: bool = flag(
        "PROXY_TOOL_BLOCK_DEDUP",
        False,
        "forward calls of the same name and arguments once",
        stage="dedup",
    )
    tool_block_max: int = flag(
        "PROXY_TOOL_BLOCK_MAX",
        0,
        "forward at most so many calls a turn; 0 means all of them",
        stage="cap",
    )
    unknown_tool_policy: UnknownToolPolicy = flag(
        "PROXY_UNKNOWN_TOOL_POLICY",
        "text",
        "a call of an undeclared tool: text leaves it in the text it was written in, call forwards "
        "it, fail fails the turn, over a structured one too",
        stage="calls",
    )
    output_mode: OutputMode = flag(
        "PROXY_OUTPUT_MODE",
        "auto",
        "auto: calls as JSON if the request has tools, else the text untouched; obsidian-xml also "
        "writes <use_tool> blocks into the text",
    )
    responses_output_mode: ResponsesOutputMode = flag(
        "PROXY_RESPONSES_OUTPUT_MODE",
        "",
        "the same for the Responses API; empty: as PROXY_OUTPUT_MODE says",
    )
    tool_block_delimiter: Escaped = flag(
        "PROXY_TOOL_BLOCK_DELIMITER",
        "\n",
        r"what stands between two blocks in obsidian-xml; \n and \t are understood",
    )
    reasoning_content: bool = flag(
        "PROXY_REASONING_CONTENT",
        True,
        "send the model's reasoning as reasoning_content",
    )
    dump_events: str = flag(
        "CODEX_DUMP_SSE",
        "",
        "write every backend message and what it was read as to this file (1 means "
        "backend-events.jsonl): for learning what a new backend sends",
        group="source",
    )
