"""The ways a model writes a call into its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from attrs import frozen

from pipeline.formats.use_tool import (
    FindTool,
    WrittenCall,
    json_goes_on,
    read_sentinel,
    read_use_tool,
    use_tool_goes_on,
)

ReadBlock: TypeAlias = Callable[[str, FindTool], WrittenCall | None]


@frozen
class TextPattern:
    """A pair of tags and how to read what stands between them, tags included.

    `opener` without its `>` is a tag that may carry attributes. `starts` are the characters a
    body may begin with, white space apart: anything else shows at once that the tag was only
    mentioned, so the text need not be held back.
    """

    name: str
    opener: str
    closer: str
    starts: str
    read: ReadBlock
    goes_on: Callable[[str], bool] = lambda _: False
    """Whether a closing tag at the end of a block stands inside one of its values."""

    @property
    def takes_attributes(self) -> bool:
        return self.opener.startswith("<") and not self.opener.endswith(">")


USE_TOOL: Final = TextPattern(
    "use_tool", "<use_tool", "</use_tool>", "<{", read_use_tool, use_tool_goes_on
)
SENTINEL: Final = TextPattern(
    "sentinel", "<tool_call>", "</tool_call>", "{", read_sentinel, json_goes_on
)
DEFAULT_PATTERNS: Final = (USE_TOOL, SENTINEL)
