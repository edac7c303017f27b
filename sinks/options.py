"""Settings of the sinks: how an answer is written."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from pipeline.options import Escaped, flag

ResponsesOutputMode: TypeAlias = Literal["", "auto", "openai-json", "obsidian-xml"]


@frozen(slots=False)
class AnswerOptions:
    """How calls and reasoning stand in an answer."""

    responses_output_mode: ResponsesOutputMode = flag(
        "PROXY_RESPONSES_OUTPUT_MODE",
        "",
        "the same for the Responses API; empty: as PROXY_OUTPUT_MODE says",
    )
    tool_block_delimiter: Escaped = flag(
        "PROXY_TOOL_BLOCK_DELIMITER",
        "\n",
        r"written before every block but the first in obsidian-xml; \n and \t are understood",
    )
    reasoning_content: bool = flag(
        "PROXY_REASONING_CONTENT",
        True,
        "send the model's reasoning as reasoning_content",
    )
