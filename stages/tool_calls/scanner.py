"""Finds whole blocks in text that arrives in pieces, and holds back as little of it as possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from stages.tool_calls.patterns import TextPattern

LONGEST_OPENING: Final = 1_024
"""An opening tag and the white space behind it; longer ones are text."""
LONGEST_BLOCK: Final = 8 * 1024 * 1024
"""A longer block is text: what one turn may hold in memory is bounded."""
RESCANS: Final = 8
"""How often the inside of an unclosed block is searched for another: bounds the work."""


@frozen
class Block:
    """The text of one block, from its opening tag to its closing one."""

    pattern: TextPattern
    text: str


Piece: TypeAlias = str | Block


class BlockScanner:
    """Every character fed comes out once, in order, as text or inside a Block.

    What comes out does not depend on how the text was split; only when it comes out does. Each
    character is searched once, so the work grows with the text and not with the number of pieces.
    """

    def __init__(self, patterns: Iterable[TextPattern]) -> None:
        self._patterns = tuple(patterns)
        self._firsts = "".join({pattern.opener[0] for pattern in self._patterns})
        self._inside: _OpenBlock | None = None
        self._held = ""  # outside a block: an end that may still become an opening tag

    @property
    def holding(self) -> bool:
        """Whether anything fed has not come out yet."""
        return bool(self._held) or self._inside is not None

    @property
    def in_block(self) -> bool:
        """Whether a block has been opened and not closed."""
        return self._inside is not None

    def feed(self, text: str) -> Sequence[Piece]:
        """Take the next piece of text; return what is certain by now."""
        pieces: list[Piece] = []
        data, at = self._held + text, 0
        self._held = ""
        while at < len(data):
            if self._inside is None:
                at = self._look_for_block(data, at, pieces)
            else:
                data, at = self._go_on(self._inside, data, at, pieces)
        return _joined(pieces)

    def close(self) -> Sequence[Piece]:
        """No more text comes: what is unclosed is text, though blocks inside it may be whole."""
        pieces: list[Piece] = []
        for _ in range(RESCANS):
            if self._inside is None:
                break
            unclosed = self._inside.text
            self._inside = None
            inner = self._next_opener(unclosed, 1)
            pieces.append(unclosed[:inner])
            pieces += self.feed(unclosed[inner:])
        pieces.append(self._inside.text if self._inside is not None else self._held)
        self._inside, self._held = None, ""
        return _joined(pieces)

    def _look_for_block(self, data: str, at: int, pieces: list[Piece]) -> int:
        """Release the text up to the next opening tag, or up to what may become one."""
        opener = self._next_opener(data, at)
        pieces.append(data[at:opener])
        pattern = next((p for p in self._patterns if _opens(p, data, opener)), None)
        if pattern is None:
            self._held = data[opener:]
            return len(data)
        self._inside = _OpenBlock(pattern)
        return opener

    def _next_opener(self, data: str, start: int) -> int:
        """Where the first opening tag stands, whole or begun at the very end; else the end."""
        at = self._next_first(data, start)
        while at < len(data):
            if any(_opens(pattern, data, at) is not False for pattern in self._patterns):
                return at
            at = self._next_first(data, at + 1)
        return at

    def _next_first(self, data: str, start: int) -> int:
        found = (data.find(first, start) for first in self._firsts)
        return min((at for at in found if at >= 0), default=len(data))

    def _go_on(self, block: _OpenBlock, data: str, at: int, pieces: list[Piece]) -> tuple[str, int]:
        """Inside a block: look for its end; return the text and where to go on in it."""
        if not block.opened:
            if block.length:
                data, at = block.text + data[at:], 0
            match block.open(data, at):
                case None:
                    block.keep(data[at:])
                    return data, len(data)
                case False:  # the tag was only mentioned: its first character is text
                    self._inside = None
                    pieces.append(data[at])
                    return data, at + 1
                case _:
                    pass
        end = block.find_end(data, at)
        if end is None:
            block.keep(data[at:])
            if block.length > LONGEST_BLOCK:
                pieces.append(block.text)
                self._inside = None
            return data, len(data)
        text = block.text + data[at:end]
        pieces.append(Block(block.pattern, text) if len(text) <= LONGEST_BLOCK else text)
        self._inside = None
        return data, end


class _OpenBlock:
    """The text since an opening tag, searched once, nested tags of its own kind counted."""

    def __init__(self, pattern: TextPattern) -> None:
        self.pattern = pattern
        self.opened = False
        self.length = 0
        self._parts: list[str] = []
        self._tags = _tags_of(pattern)
        self._body = 0  # where the body starts in the first piece
        self._empty = False  # the opening tag closes itself
        self._carry = ""  # the end of what was searched: a tag may be split across pieces
        self._depth = 0

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def keep(self, text: str) -> None:
        if not self.opened:
            self._parts.clear()
            self.length = 0
        self._parts.append(text)
        self.length += len(text)

    def open(self, data: str, at: int) -> bool | None:
        """Read the opening tag and the body's first character; None when they are not all there."""
        limit = at + LONGEST_OPENING
        tag_end = at + len(self.pattern.opener)
        if self.pattern.takes_attributes:
            tag_end = data.find(">", at, limit) + 1
            self._empty = data[tag_end - 2] == "/"
        body = data[tag_end:limit].lstrip()
        if not tag_end or not (body or self._empty):
            return None if len(data) < limit else False
        self.opened = self._empty or body[0] in self.pattern.starts
        self._body = tag_end
        self._parts.clear()
        self.length = 0
        return self.opened

    def find_end(self, data: str, at: int) -> int | None:
        """Where the block ends in the text that continues it; None if it goes on."""
        if self._empty:
            return self._body
        window = self._carry + data[at:] if self._carry else data
        offset = at - len(self._carry) if self._carry else 0
        last = max(self._body, 0 if self._carry else at)
        self._body = 0
        for tag in self._tags.finditer(window, last):
            last = tag.end()
            self._depth += -1 if tag[0] == self.pattern.closer else 1
            if self._depth < 0:
                return offset + last
        overlap = max(len(self.pattern.closer), len(self.pattern.opener) + 1) - 1
        self._carry = window[max(last, len(window) - overlap) :]
        return None


def _tags_of(pattern: TextPattern) -> re.Pattern[str]:
    opener = re.escape(pattern.opener) + (r"(?=[\s/>])" if pattern.takes_attributes else "")
    return re.compile(f"{re.escape(pattern.closer)}|{opener}")


def _opens(pattern: TextPattern, data: str, at: int) -> bool | None:
    """Whether the pattern's opening tag stands at a place; None when more text must tell."""
    rest = data[at : at + len(pattern.opener) + 1]
    if not pattern.takes_attributes and rest.startswith(pattern.opener):
        return True
    if len(rest) <= len(pattern.opener):
        return None if pattern.opener.startswith(rest) else False
    return rest.startswith(pattern.opener) and (rest[-1].isspace() or rest[-1] in "/>")


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbouring texts as one, empty ones left out."""
    joined: list[Piece] = []
    run: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            run.append(piece)
            continue
        if text := "".join(run):
            joined.append(text)
        run.clear()
        joined.append(piece)
    if text := "".join(run):
        joined.append(text)
    return joined
