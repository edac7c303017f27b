"""Tells which blocks stand in a Markdown code fence, and takes off fences that hold only calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import Factory, define, evolve

from stages.tool_calls.patterns import TextPattern
from stages.tool_calls.scanner import LONGEST_BLOCK, Block, BlockScanner, Piece, joined

LONGEST_LINE: Final = 256
"""A longer line is no fence line."""
LONGEST_GAP: Final = 1_024
"""More white space than this between a fence and a block, or two blocks, counts as other text."""

_BLANK: Final = " \t\r"
_BEGINS: Final = re.compile(r"\n[ \t]*[`~]")
_BEGINS_HERE: Final = re.compile(r"[ \t]*[`~]")
_MAY_OPEN: Final = re.compile(r"`{0,2}|~{0,2}|`{3,}[^`]*|~{3,}.*", re.DOTALL)
_OPENS: Final = re.compile(r"`{3,}|~{3,}")
_MAY_WRAP: Final = re.compile(r"`{1,2}|~{1,2}|(?:`{3,}|~{3,})[ \t]*[\w.+#-]*[ \t\r]*")
"""An opening line with no more than a language word, or the beginning of one."""


class FenceLines:
    """Follows text line by line: whether it is in a fence, and whether the line may be a fence's.

    As in CommonMark, except that a fence line may be indented at will, as it is in lists.
    """

    def __init__(self) -> None:
        self.fence = ""
        """The back-ticks or tildes that opened the fence around the text; empty outside one."""
        self.line: str | None = ""
        """The current line from its first mark on; None if it is no fence line."""

    def passes(self, text: str) -> bool:
        """Whether no line of the text may be a fence line; then its end is noted."""
        if self.line:
            return False
        if ("`" in text or "~" in text) and (
            _BEGINS.search(text) or (self.line is not None and _BEGINS_HERE.match(text))
        ):
            return False
        self.note_end(text)
        return True

    def note_end(self, text: str) -> None:
        """Take text of which no line may be a fence line."""
        if text[-1:] > " ":  # most texts end so: look no closer
            self.line = None
        elif (end := text.rfind("\n") + 1) or self.line is not None:
            self.line = None if text[end:].strip(" \t") else ""

    def add(self, part: str) -> None:
        """Take more of the current line."""
        if self.line is not None:
            line = self.line + part if self.line else part.lstrip(" \t")
            self.line = line if self._may_be_fence(line) else None

    def end_line(self) -> None:
        line, self.line = self.line, ""
        if not line:
            return
        if not self.fence:
            opening = _OPENS.match(line)
            self.fence = opening[0] if opening else ""
        elif len(line.rstrip(_BLANK)) >= len(self.fence):
            self.fence = ""

    def add_block(self) -> bool:
        """Take a block as part of the current line; whether it stands in a fence."""
        opening = not self.fence and self.line and _OPENS.match(self.line)
        self.line = f"{self.line}<" if opening else None
        return bool(self.fence or opening)

    def _may_be_fence(self, line: str) -> bool:
        if len(line) > LONGEST_LINE:
            return False
        if self.fence:
            return not line.lstrip(self.fence[0]).strip(_BLANK)
        return _MAY_OPEN.fullmatch(line) is not None


@define
class _Wrapped:
    """An opening fence line, and the calls that are all that followed it until now."""

    fence: str
    pieces: list[Piece]
    gap: str = ""
    """What followed the last piece: white space, and perhaps the beginning of a closing fence."""
    calls: list[Block] = Factory(list[Block])
    length: int = 0

    def add(self, call: Block) -> None:
        self.pieces += [self.gap, call]
        self.calls.append(call)
        self.length += len(call.text)
        self.gap = ""

    def closing(self, text: str) -> int | None:
        """Where the closing line at the start of a text ends; 0 if there is none, None if open."""
        rest = text.lstrip()
        behind = rest.lstrip(self.fence[0])
        after = behind.lstrip(_BLANK)
        marks = len(rest) - len(behind)
        if not self.calls and rest:
            return 0
        if not after:
            return None if marks >= len(self.fence) or not behind else 0
        return len(text) - len(after) + 1 if marks >= len(self.fence) and after[0] == "\n" else 0

    @property
    def whole(self) -> bool:
        """Whether it is a fence around calls if no more text comes: a fence need not be closed."""
        marks = self.gap.strip()
        return bool(self.calls) and (not marks or len(marks) >= len(self.fence))


class FenceScanner:
    """Finds what a BlockScanner finds, and tells of each block whether it stands in a fence.

    `unwraps` tells of a block whether it is a call that takes its fence along: a fence that holds
    nothing but such blocks and white space comes out as those blocks alone. Every other character
    comes out once and in order, and none of it depends on how the text was split.
    """

    def __init__(
        self, patterns: Iterable[TextPattern], unwraps: Callable[[Block], bool] | None = None
    ) -> None:
        self._blocks = BlockScanner(patterns)
        self._marks = ("`", "~", *self._blocks.firsts)
        self._unwraps = unwraps
        self._lines = FenceLines()
        self._quiet = True  # nothing is held, and the current line is no fence line so far
        self._held = ""  # a line that may open a fence around calls
        self._wrapped: _Wrapped | None = None

    @property
    def holding(self) -> bool:
        """Whether anything fed has not come out yet."""
        return bool(self._held) or self._wrapped is not None or self._blocks.holding

    @property
    def in_block(self) -> bool:
        """Whether a block has been opened and not closed."""
        return self._blocks.in_block

    @property
    def has_call(self) -> bool:
        """Whether a call is held until it is known what else is in its fence."""
        return self._wrapped is not None and bool(self._wrapped.calls)

    def lets_pass(self, text: str) -> bool:
        """Whether the text can pass as it is; then it has been taken note of."""
        if not self._quiet:
            return False
        for mark in self._marks:
            if mark in text:
                return self._blocks.lets_pass(text) and self._lines.passes(text)
        self._lines.note_end(text)
        return True

    def let_pass(self, texts: Sequence[str]) -> bool:
        """Whether several texts, one after the other, can pass as they are."""
        if not self._quiet:
            return False
        together = "".join(texts)
        for mark in self._marks:
            if mark in together:
                return self._blocks.let_pass(texts) and self._lines.passes(together)
        self._lines.note_end(together)
        return True

    def feed(self, text: str) -> Sequence[Piece]:
        """Take the next piece of text; return what is certain by now."""
        out: list[Piece] = []
        self._take(self._blocks.feed(text), out)
        self._quiet = not (self.holding or self._lines.line)
        return joined(out)

    def close(self) -> Sequence[Piece]:
        """No more text comes; what comes after belongs to another message."""
        out: list[Piece] = []
        self._take(self._blocks.close(), out)
        if self._wrapped is not None and self._wrapped.whole:
            out += self._wrapped.calls
            self._wrapped = None
        self._release(out)
        self._lines = FenceLines()
        self._quiet = True
        return joined(out)

    def _take(self, pieces: Iterable[Piece], out: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._text(piece, out)
            else:
                self._block(piece, out)

    def _text(self, text: str, out: list[Piece]) -> None:
        if not self._held and self._wrapped is None and self._lines.passes(text):
            out.append(text)
            return
        at = 0
        while at < len(text):
            if self._wrapped is None:
                at = self._line(text, at, out)
            else:
                at = self._gap(self._wrapped, text, at, out)

    def _line(self, text: str, at: int, out: list[Piece]) -> int:
        """Take a line, or as much of it as there is; one that may open a fence is held."""
        end = text.find("\n", at) + 1 or len(text)
        part = text[at:end]
        ended = part.endswith("\n")
        lines = self._lines
        lines.add(part.removesuffix("\n"))
        line = lines.line
        so_far, self._held = self._held + part, ""
        if line and self._unwraps and not lines.fence and _MAY_WRAP.fullmatch(line):
            indent = len(so_far) - len(line) - ended
            out.append(so_far[:indent])
            so_far = so_far[indent:]
            if not ended:
                self._held, so_far = so_far, ""
            elif (opening := _OPENS.match(line)) is not None:
                self._wrapped, so_far = _Wrapped(opening[0], [so_far]), ""
        out.append(so_far)
        if ended:
            lines.end_line()
        return end

    def _gap(self, wrapped: _Wrapped, text: str, at: int, out: list[Piece]) -> int:
        """Take what follows an opening line or a call in a fence; release it all if it is text."""
        more = text[at : at + LONGEST_GAP]
        gap = wrapped.gap + more
        closing = wrapped.closing(gap)
        if closing == 0 or (closing or len(gap)) > LONGEST_GAP:
            self._release(out)
            return at
        if closing is None:
            wrapped.gap = gap
            return at + len(more)
        out += wrapped.calls
        self._wrapped, self._lines = None, FenceLines()
        return at + closing - len(wrapped.gap)

    def _block(self, block: Block, out: list[Piece]) -> None:
        wrapped = self._wrapped
        if wrapped is not None and not wrapped.gap.strip() and self._fits(wrapped, block):
            wrapped.add(evolve(block, fenced=True))
            return
        self._release(out)
        out.append(evolve(block, fenced=True) if self._lines.add_block() else block)

    def _fits(self, wrapped: _Wrapped, block: Block) -> bool:
        fits = wrapped.length + len(block.text) <= LONGEST_BLOCK
        return fits and self._unwraps is not None and self._unwraps(block)

    def _release(self, out: list[Piece]) -> None:
        """Let out what was held: the fence around it is an ordinary one."""
        out.append(self._held)
        self._held = ""
        wrapped, self._wrapped = self._wrapped, None
        if wrapped is not None:
            out.append(wrapped.pieces[0])
            self._take([*wrapped.pieces[1:], wrapped.gap], out)
