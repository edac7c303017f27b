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
TRIES: Final = 8
"""How many closing tags inside values a block may have: bounds the work."""
RESCANS: Final = 8
"""How often the inside of an unclosed block is searched for another: bounds the work."""


_TAG: Final = re.compile(r"""<(?:[^"'>]|"[^"]*"|'[^']*')*>""")


@frozen
class Block:
    """The text of one block, from its opening tag to its closing one."""

    pattern: TextPattern
    text: str
    fenced: bool = False
    """Whether it stands in a Markdown code fence, where that matters."""


Piece: TypeAlias = str | Block


class BlockScanner:
    """Every character fed comes out once, in order, as text or inside a Block.

    What comes out does not depend on how the text was split; only when it comes out does. Each
    character is searched once, so the work grows with the text and not with the number of pieces.
    """

    def __init__(self, patterns: Iterable[TextPattern]) -> None:
        self._patterns = tuple(patterns)
        self._openers = _openers_of(self._patterns)
        self.firsts = frozenset(pattern.opener[0] for pattern in self._patterns)
        """The characters that an opening tag may begin with."""
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

    def lets_pass(self, text: str) -> bool:
        """Whether the text can pass as it is: nothing is held, and nothing in it may be a tag."""
        if self._held or self._inside is not None:
            return False
        return self._openers.search(text) is None

    def let_pass(self, texts: Sequence[str]) -> bool:
        """Whether each of several texts, one after the other, can pass as it is."""
        if self._held or self._inside is not None:
            return False
        together = "".join(texts)
        if not any(first in together for first in self.firsts):
            return True
        return not any(map(self._openers.search, texts))

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
        return joined(pieces)

    def close(self) -> Sequence[Piece]:
        """No more text comes: what is unclosed is text, though blocks inside it may be whole."""
        pieces: list[Piece] = []
        for _ in range(RESCANS):
            if self._inside is None:
                break
            unclosed = self._inside.text
            self._inside = None
            pieces.append(unclosed[:1])
            pieces += self.feed(unclosed[1:])
        pieces.append(self._inside.text if self._inside is not None else self._held)
        self._inside, self._held = None, ""
        return joined(pieces)

    def _look_for_block(self, data: str, at: int, pieces: list[Piece]) -> int:
        """Release the text up to the next opening tag, or up to what may become one."""
        found = self._openers.search(data, at)
        if found is None:
            pieces.append(data[at:])
            return len(data)
        pieces.append(data[at : found.start()])
        if found.lastindex is None:
            self._held = data[found.start() :]
            return len(data)
        self._inside = _OpenBlock(self._patterns[found.lastindex - 1])
        return found.start()

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
        length = block.length + (len(data) if end is None else end) - at
        if length > LONGEST_BLOCK:
            return self._give_up(block, data, at, pieces)
        if end is None:
            block.keep(data[at:])
            return data, len(data)
        pieces.append(Block(block.pattern, block.text + data[at:end]))
        self._inside = None
        return data, end

    def _give_up(
        self, block: _OpenBlock, data: str, at: int, pieces: list[Piece]
    ) -> tuple[str, int]:
        """A block that does not end within the limit: so much of it is text, then we go on."""
        if block.length:
            data, at = block.text + data[at:], 0
        self._inside = None
        pieces.append(data[at : at + LONGEST_BLOCK])
        return data, at + LONGEST_BLOCK


class _OpenBlock:
    """The text since an opening tag, searched once, nested tags of its own kind counted."""

    def __init__(self, pattern: TextPattern) -> None:
        self.pattern = pattern
        self.opened = False
        self.length = 0
        self._parts: list[str] = []
        self._tags = _tags_of(pattern)
        self._starts = frozenset(pattern.starts)
        self._body = 0  # where the body starts in the first piece
        self._empty = False  # the opening tag closes itself
        self._carry = ""  # a tag that was begun at the end of what was searched
        self._depth = 0
        self._tries = 0

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
            tag = _TAG.match(data, at, limit)
            if tag is None:
                return None if len(data) < limit else False
            tag_end = tag.end()
            self._empty = data[tag_end - 2 : tag_end] == "/>"
        body = data[tag_end:limit].lstrip()
        if not (body or self._empty):
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
            if tag[0] == self.pattern.closer:
                self._depth -= 1
            else:
                follows = window[tag.end() : tag.end() + LONGEST_OPENING]
                if not follows.strip() and len(follows) < LONGEST_OPENING:
                    self._carry = window[tag.start() :]  # what follows must tell
                    return None
                # A tag that is only mentioned opens nothing, here as little as outside a block.
                self._depth += follows.lstrip()[:1] in self._starts
            last = tag.end()
            if self._depth < 0:
                end = offset + last
                if self._tries == TRIES or not self.pattern.goes_on(self.text + data[at:end]):
                    return end
                self._tries += 1  # the tag stands inside a value: it closes nothing
                self._depth = 0
        begun = window.rfind("<", max(last, len(window) - LONGEST_OPENING))
        self._carry = window[begun:] if begun >= 0 and ">" not in window[begun:] else ""
        return None


def _openers_of(patterns: Sequence[TextPattern]) -> re.Pattern[str]:
    """Finds an opening tag, as the group of its pattern, or the beginning of one at the end."""
    whole = [f"({_opener_of(pattern)})" for pattern in patterns]
    begun = {
        pattern.opener[:length]
        for pattern in patterns
        for length in range(1, len(pattern.opener) + pattern.takes_attributes)
    }
    longest_first = sorted(begun, key=len, reverse=True)
    at_the_end = "|".join(map(re.escape, longest_first))
    return re.compile("|".join([*whole, rf"(?:{at_the_end})\Z"]))


def _opener_of(pattern: TextPattern) -> str:
    return re.escape(pattern.opener) + (r"(?=[\s/>])" if pattern.takes_attributes else "")


def _tags_of(pattern: TextPattern) -> re.Pattern[str]:
    """Finds the tags that open and close such a block; one that closes itself is neither."""
    opener = re.escape(pattern.opener)
    if pattern.takes_attributes:
        opener += r"(?:\s[^<>]{0,1000})?(?<!/)>"
    return re.compile(f"{re.escape(pattern.closer)}|{opener}")


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbouring texts as one, empty ones left out."""
    out: list[Piece] = []
    run: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            run.append(piece)
            continue
        if text := "".join(run):
            out.append(text)
        run.clear()
        out.append(piece)
    if text := "".join(run):
        out.append(text)
    return out
