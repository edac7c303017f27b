from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.formats.use_tool import FindTool, WrittenCall
from stages.tool_calls.patterns import DEFAULT_PATTERNS, TextPattern
from stages.tool_calls.scanner import LONGEST_OPENING, RESCANS, Block, BlockScanner, Piece

law: Final = settings(deadline=None, max_examples=300)

WHOLE: Final = "<use_tool><name>x</name></use_tool>"
TOKENS: Final = (
    *("<use_tool>", "<use_tool", "</use_tool>", "<tool_call>", "</tool_call>", "<name>", "</name>"),
    *("{", "}", "<", ">", "/", " ", "a", "\n", 'name="x"', "é", "🌍", WHOLE, "<use_tool><"),
)
LONGEST_OPENER: Final = max(len(pattern.opener) for pattern in DEFAULT_PATTERNS)

texts = st.lists(st.sampled_from(TOKENS), max_size=20).map("".join)
long_texts = st.lists(st.sampled_from((*TOKENS, " " * 500, "x" * 500)), max_size=20).map("".join)


@st.composite
def split_texts(draw: st.DrawFn, texts: st.SearchStrategy[str] = texts) -> list[str]:
    """A text in parts, some of them perhaps empty."""
    text = draw(texts)
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=6))
    return [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]


def scan(parts: Iterable[str], scanner: BlockScanner | None = None) -> list[Piece]:
    """Everything that comes out, neighbouring texts joined."""
    scanner = scanner or BlockScanner(DEFAULT_PATTERNS)
    pieces: list[Piece] = []
    for part in parts:
        pieces += scanner.feed(part)
    return joined([*pieces, *scanner.close()])


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for is_text, run in groupby(pieces, lambda piece: isinstance(piece, str)):
        neighbours = list(run)
        out += [written(neighbours)] if is_text else neighbours
    return out


def written(pieces: Sequence[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def blocks(pieces: Sequence[Piece]) -> list[str]:
    return [piece.text for piece in pieces if isinstance(piece, Block)]


# -- laws ----------------------------------------------------------------------------------------


@law
@given(split_texts())
def test_every_character_comes_out_once_and_in_order(parts: list[str]) -> None:
    assert written(scan(parts)) == "".join(parts)


@law
@given(split_texts())
@example([WHOLE[:-1], WHOLE[-1:]])
@example(["<use_tool", "><{ <use_tool", "s></use_tool>"])
def test_what_comes_out_does_not_depend_on_how_the_text_was_split(parts: list[str]) -> None:
    assert scan(parts) == scan(["".join(parts)])


@law
@given(texts)
def test_text_may_come_one_character_at_a_time(text: str) -> None:
    assert scan(text) == scan([text])


@law
@given(split_texts(long_texts))
@example(["<use_tool><<use_tool ", "x" * 990, "></use_tool>"])
@example(["<use_tool " + "x" * 500, "x" * 513, "><a></use_tool>"])
def test_the_limit_of_an_opening_does_not_depend_on_the_split(parts: list[str]) -> None:
    assert scan(parts) == scan(["".join(parts)])


@law
@given(split_texts(), st.integers(1, 60))
@example(list("<use_tool>" * 5 + "</use_tool>"), 30)
def test_the_limit_of_a_block_does_not_depend_on_the_split(parts: list[str], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.tool_calls.scanner.LONGEST_BLOCK", limit)
        assert scan(parts) == scan(["".join(parts)])
        assert scan("".join(parts)) == scan(["".join(parts)])


@law
@given(split_texts(), st.integers(1, 60))
def test_no_limit_loses_a_character(parts: list[str], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.tool_calls.scanner.LONGEST_BLOCK", limit)
        patch.setattr("stages.tool_calls.scanner.LONGEST_OPENING", limit // 2)
        pieces = scan(parts)
    assert written(pieces) == "".join(parts)
    assert all(len(block) <= limit for block in blocks(pieces))


@law
@given(split_texts())
def test_a_block_reaches_from_its_opening_tag_to_its_closing_one(parts: list[str]) -> None:
    for piece in scan(parts):
        if isinstance(piece, Block):
            assert piece.text.startswith(piece.pattern.opener)
            assert piece.text.endswith((piece.pattern.closer, "/>"))


@law
@given(split_texts())
def test_outside_a_block_less_than_an_opening_tag_is_held(parts: list[str]) -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    held = 0
    for part in parts:
        held += len(part) - len(written(scanner.feed(part)))
        assert scanner.holding == (held > 0)
        if not scanner.in_block:
            assert held <= LONGEST_OPENER


@law
@given(split_texts())
def test_after_close_nothing_is_held_and_the_scanner_can_go_on(parts: list[str]) -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    first = scan(parts, scanner)
    assert not scanner.holding
    assert not scanner.in_block
    assert scan(parts, scanner) == first


@law
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<")))
def test_plain_text_is_released_at_once(text: str) -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert written(scanner.feed(text)) == text
    assert not scanner.holding


# -- what is text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "To call a tool write `<use_tool>` and then its name.",
        "<use_tool> is a tag",
        "<use_tool>\n\nis a tag",
        "the tags <tool_call> and </tool_call>.",
        '<tool_call><name>x</name>, but "<" starts no JSON',
        "<use_tools><name>x</name></use_tools>",
        "<use_tool-x><name>x</name>",
        "<USE_TOOL><name>x</name></USE_TOOL>",
        "</use_tool> and </tool_call>",
        "a < b, b <= c",
        "<tool_calls>{}",
    ],
)
def test_prose_that_mentions_a_tag_is_released_at_once(text: str) -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert joined(scanner.feed(text)) == [text]
    assert not scanner.holding


@pytest.mark.parametrize(
    "end", ["<", "<use", "<use_tool", "<tool_call", "<use_tool>", "<use_tool x"]
)
def test_an_end_that_may_become_a_tag_waits_and_survives(end: str) -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert list(scanner.feed(f"a {end}")) == ["a "]
    assert scanner.holding
    assert list(scanner.close()) == [end]


def test_an_end_that_becomes_no_tag_is_released_with_what_follows() -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert list(scanner.feed("a <use_tool")) == ["a "]
    assert list(scanner.feed("s>")) == ["<use_tools>"]
    assert not scanner.holding


def test_an_unclosed_block_is_text() -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert list(scanner.feed("a <use_tool><name>x")) == ["a "]
    assert scanner.in_block
    assert list(scanner.close()) == ["<use_tool><name>x"]


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_a_block_over_the_limit_is_text(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{WHOLE} {WHOLE.replace('x', 'xy')}."
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    assert len(blocks(scan(parts))) == 2
    monkeypatch.setattr("stages.tool_calls.scanner.LONGEST_BLOCK", len(WHOLE))
    assert blocks(scan(parts)) == [WHOLE]
    assert written(scan(parts)) == text


def test_a_block_that_outgrows_the_limit_is_not_held_any_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stages.tool_calls.scanner.LONGEST_BLOCK", 20)
    scanner = BlockScanner(DEFAULT_PATTERNS)
    begun = "<use_tool><name>".ljust(20, "x")
    assert list(scanner.feed(begun)) == []
    assert list(scanner.feed("y")) == [begun + "y"]
    assert not scanner.holding


@pytest.mark.parametrize("step", [1, 100, 10_000])
@pytest.mark.parametrize(
    ("room", "found"), [pytest.param(1, True, id="fits"), pytest.param(0, False, id="too-long")]
)
def test_an_opening_tag_over_the_limit_is_text(room: int, found: bool, step: int) -> None:
    """The tag, the white space behind it and the first character of the body count."""
    opening = '<use_tool name="x">'
    blank = " " * (LONGEST_OPENING - len(opening) - room)
    text = f"{opening}{blank}<a>1</a></use_tool>"
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    assert blocks(scan(parts)) == ([text] if found else [])
    assert written(scan(parts)) == text


def test_an_endless_opening_tag_is_released_when_it_passes_the_limit() -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    tag = "<use_tool ".ljust(LONGEST_OPENING - 1, "x")
    assert list(scanner.feed(tag)) == []
    assert joined(scanner.feed("x")) == [tag + "x"]


# -- what is a block -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(WHOLE, id="elements"),
        pytest.param('<use_tool name="x"><a>1</a></use_tool>', id="attribute"),
        pytest.param("<use_tool\n>\n <name>x</name></use_tool>", id="white-space"),
        pytest.param('<use_tool name="x"/>', id="self-closing"),
        pytest.param('<use_tool>{"name": "x"}</use_tool>', id="json-body"),
        pytest.param('<tool_call>{"name": "x"}</tool_call>', id="sentinel"),
        pytest.param('<tool_call>\n{"name": "é🌍"}\n</tool_call>', id="unicode"),
        pytest.param(f"<use_tool><name>x</name><a>{WHOLE}</a></use_tool>", id="nested"),
        pytest.param(f"<use_tool><a>{WHOLE}{WHOLE}</a></use_tool>", id="nested-twice"),
        pytest.param(f"<use_tool><a>{WHOLE.replace('x', WHOLE)}</a></use_tool>", id="nested-deep"),
        pytest.param("<use_tool><a><use_tools></a></use_tool>", id="another-tag-inside"),
        pytest.param("<use_tool><a><tool_call>{</a></use_tool>", id="another-opener-inside"),
        pytest.param('<tool_call>{"a": "<use_tool><"}</tool_call>', id="use-tool-in-sentinel"),
        pytest.param('<use_tool><a><use_tool name="y"/></a></use_tool>', id="self-closing-inside"),
    ],
)
def test_a_block_comes_out_whole_between_its_texts(block: str) -> None:
    for parts in ([f"a {block} b{block}"], list(f"a {block} b{block}")):
        pieces = scan(parts)
        assert [written([piece]) for piece in pieces] == ["a ", block, " b", block]
        assert blocks(pieces) == [block, block]


def test_a_block_comes_out_with_its_last_character() -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert list(scanner.feed(WHOLE[:-1])) == []
    assert scanner.in_block
    assert blocks(scanner.feed(">")) == [WHOLE]
    assert not scanner.holding


def test_each_block_tells_its_pattern() -> None:
    pieces = scan([WHOLE + '<tool_call>{"name": "x"}</tool_call>'])
    names = [piece.pattern.name for piece in pieces if isinstance(piece, Block)]
    assert names == ["use_tool", "sentinel"]


def test_a_whole_block_inside_an_unclosed_one_is_found_at_the_end() -> None:
    scanner = BlockScanner(DEFAULT_PATTERNS)
    assert list(scanner.feed(f"a <use_tool><name>y {WHOLE} b")) == ["a "]
    pieces = list(scanner.close())
    assert blocks(pieces) == [WHOLE]
    assert (pieces[0], pieces[-1]) == ("<use_tool><name>y ", " b")


@pytest.mark.parametrize(("unclosed", "found"), [(RESCANS, [WHOLE]), (RESCANS + 1, [])])
def test_the_search_inside_unclosed_blocks_is_bounded(unclosed: int, found: list[str]) -> None:
    text = "<use_tool><" * unclosed + WHOLE
    assert blocks(scan([text])) == found
    assert written(scan([text])) == text


def test_a_pattern_of_ones_own_is_looked_for_and_no_other() -> None:
    def read(block: str, _: FindTool) -> WrittenCall | None:
        return WrittenCall(block, "{}")

    own = TextPattern("own", "<call>", "</call>", "x", read)
    text = f"{WHOLE} <call> xyz</call> <call>no</call>"
    assert scan(text, BlockScanner([own])) == [
        f"{WHOLE} ",
        Block(own, "<call> xyz</call>"),
        " <call>no</call>",
    ]


def test_without_patterns_everything_is_text() -> None:
    scanner = BlockScanner([])
    assert list(scanner.feed(f"{WHOLE} <")) == [f"{WHOLE} <"]
    assert not scanner.holding


@pytest.mark.parametrize(
    "block",
    [
        '<use_tool name="f" v="a > b"/>',
        "<use_tool><name>f</name><v>see <use_tool> here</v></use_tool>",
    ],
)
def test_what_stands_in_quotes_or_is_only_mentioned_ends_no_block(block: str) -> None:
    for pieces in ([block], list(block)):
        scanner = BlockScanner(DEFAULT_PATTERNS)
        found = [piece for text in pieces for piece in scanner.feed(text)]
        assert [piece.text for piece in found if isinstance(piece, Block)] == [block]


@pytest.mark.parametrize(
    "block",
    [
        '<tool_call>{"name":"s","arguments":{"q":"the </tool_call> tag"}}</tool_call>',
        "<use_tool><name>s</name><q>end with </use_tool></q></use_tool>",
        '<use_tool>{"name":"s","arguments":{"q":"</use_tool>"}}</use_tool>',
    ],
)
def test_a_closing_tag_inside_a_value_closes_nothing(block: str) -> None:
    for pieces in ([block], list(block)):
        scanner = BlockScanner(DEFAULT_PATTERNS)
        found = [piece for text in pieces for piece in scanner.feed(text)]
        assert [piece.text for piece in found if isinstance(piece, Block)] == [block]
