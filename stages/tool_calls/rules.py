"""Which of the calls that a model makes are forwarded, and which written blocks are calls."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from pipeline.formats.use_tool import WrittenCall
from pipeline.turn import OutputMode, Turn
from stages.tool_calls.patterns import SENTINEL
from stages.tool_calls.scanner import Block

UnknownToolPolicy: TypeAlias = Literal["text", "call", "fail"]


@frozen
class CallRules:
    """By what the client declared, and by what the operator chose for all other names."""

    turn: Turn
    policy: UnknownToolPolicy
    output_mode: OutputMode

    @property
    def any_name(self) -> bool:
        """Whether every written call counts: the client describes its tools in its own prompt."""
        return self.output_mode == "obsidian-xml" and not self.turn.tools

    @property
    def search_text(self) -> bool:
        """Whether text is searched for calls.

        Without tools and without a mode asked for, the text is the client's own to read.
        """
        asked = self.output_mode != "auto" and self.policy == "call"
        return bool(self.turn.offered) or self.any_name or asked

    def forwards(self, name: str) -> bool:
        """Whether a call may be forwarded; otherwise the turn fails."""
        return self.policy != "fail" or name in self.turn.tool_names

    def is_expected(self, name: str, *, written: bool) -> bool:
        """Whether the client knows the name of a call."""
        return name in self.turn.tool_names or (written and self.any_name)

    def read(self, block: Block) -> WrittenCall | None:
        """The call that a block is; None if it stays text."""
        if self.any_name and block.fenced:
            return None  # an example
        call = block.pattern.read(block.text, self.turn.tool)
        if call is None or self.policy != "text":
            return call
        return call if self.is_expected(call.name, written=True) else None

    def undeclared_name(self, block: Block) -> str:
        """The tool of a block that stays text because it was not declared; else empty."""
        if self.any_name or self.policy != "text":
            return ""
        call = block.pattern.read(block.text, self.turn.tool)
        return "" if call is None else call.name

    def takes_fence(self, block: Block) -> bool:
        """Whether a block is a call whose code fence, if it has one, is no part of the answer.

        Models put the form that the prompt asks for into a fence although it forbids that.
        """
        if self.any_name or block.pattern is not SENTINEL:
            return False
        call = self.read(block)
        return call is not None and self.forwards(call.name)
