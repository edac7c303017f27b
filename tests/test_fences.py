"""Blocks in Markdown code fences: which are in one, and which fences go with their calls."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Final

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline import assembly
from pipeline.assembly import Settings
from pipeline.events import CallProgress, Event, ResponseEnd, TextDelta, ToolCall, TurnEnd
from pipeline.turn import Tool, Turn
from stages.tool_calls.fences import LONGEST_GAP, LONGEST_LINE, FenceScanner
from stages.tool_calls.patterns import DEFAULT_PATTERNS, SENTINEL
from stages.tool_calls.scanner import Block, BlockScanner, Piece, joined
from tests.support.aggregate_parts import TURN, Policy, play

law: Final = settings(deadline=None, max_examples=400)
CALL: Final = '<tool_call>{"name": "f"}</tool_call>'
USE: Final = "<use_tool><name>f</name></use_tool>"
OTHER: Final = '<tool_call>{"name": "other"}</tool_call>'
MALFORMED: Final = '<tool_call>{"name": }</tool_call>'
TOKENS: Final = (
    *("```", "`", "``", "````", "~~~", "~", "```json\n", "```\n", "\n```", "\n```\n", "\n", "\r\n"),
    *(" ", "\t", "a", "json", "é", "<", "<tool_call>", f"```\n{CALL}\n```\n", CALL, CALL, USE),
    *("<use_tool>", OTHER, MALFORMED),
)
texts = st.lists(st.sampled_from(TOKENS), max_size=16).map("".join)


@st.composite
def split_texts(draw: st.DrawFn) -> list[str]:
    text = draw(texts)
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=6))
    return [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]


def is_known(block: Block) -> bool:
    call = block.pattern.read(block.text, lambda _: None)
    return block.pattern is SENTINEL and call is not None and call.name == "f"


def scanner(*, unwraps: bool = True) -> FenceScanner:
    return FenceScanner(DEFAULT_PATTERNS, is_known if unwraps else None)


def scan(parts: Iterable[str], finder: FenceScanner | BlockScanner | None = None) -> list[Piece]:
    finder = finder or scanner()
    pieces = [piece for part in parts for piece in finder.feed(part)]
    return joined([*pieces, *finder.close()])


def written(pieces: Sequence[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def blocks(pieces: Sequence[Piece]) -> list[Block]:
    return [piece for piece in pieces if isinstance(piece, Block)]


def said(text: str, turn: Turn = TURN, policy: Policy = "text") -> tuple[str, int]:
    """The text and the number of calls, the same for the whole text and for every character."""
    whole = play(TextDelta(text), TurnEnd(), turn=turn, policy=policy)
    single = play(*map(TextDelta, text), TurnEnd(), turn=turn, policy=policy)
    assert (single.text, single.named) == (whole.text, whole.named)
    return whole.text, len(whole.calls)


# -- a sentinel takes its fence along --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left", "calls"),
    [
        (f"```\n{CALL}\n```", "", 1),
        (f"a\n```json\n{CALL}\n```\nb", "a\nb", 1),
        (f"a\n```json\n{CALL}\n```\n\nb", "a\n\nb", 1),
        (f"```tool_call\n{CALL}\n```\n", "", 1),
        (f"``` c++ \n\n {CALL}\n\n```  \nb", "b", 1),
        (f"```\r\n{CALL}\r\n```\r\nb", "b", 1),
        (f"````\n{CALL}\n````", "", 1),
        (f"````\n{CALL}\n`````\n", "", 1),
        (f"~~~xml\n{CALL}\n~~~\n", "", 1),
        (f"```\n{CALL}\n{CALL}\n\n{CALL}\n```\n", "", 3),
        (f"```\n{CALL}{CALL}\n```\n", "", 2),
        (f"```\n{CALL}\n```\n```\n{CALL}\n```\n", "", 2),
        (f"```\n{CALL}\n```\nand\n```\n{CALL}\n```\n", "and\n", 2),
        (f"1. a\n   ```\n   {CALL}\n   ```\nb", "1. a\n   b", 1),
        (f"```\n{CALL}```\nb", "b", 1),
        (f"```python\nx\n```\n```\n{CALL}\n```\nb", "```python\nx\n```\nb", 1),
    ],
)
def test_a_fence_around_nothing_but_calls_goes_with_them(text: str, left: str, calls: int) -> None:
    assert said(text) == (left, calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"```\nSee:\n{CALL}\n```\n", 1),
        (f"```\n{CALL}\nSee.\n```\n", 1),
        (f"```\n{CALL}\nSee {CALL}\n```\n", 2),
        (f"```\n{CALL}\n{OTHER}\n```\n", 1),
        (f"```\n{OTHER}\n```\n", 0),
        (f"```\n{MALFORMED}\n{CALL}\n```\n", 1),
        (f"```\n{USE}\n```\n", 1),
        (f"```\n{CALL}\n{USE}\n```\n", 2),
        (f"```\n{CALL}\n``\n```\n", 1),
        (f"```\n{CALL}\n```js\n```\n", 1),
        (f"```\n{CALL}\n```{CALL}\n```\n", 2),
        (f"````\n{CALL}\n```\n````\n", 1),
        (f"```\n{CALL}\n~~~\n```\n", 1),
        (f"```json title=a\n{CALL}\n```\n", 1),
        (f"```{CALL}```\n", 1),
        (f"``` {CALL}\n```\n", 1),
        (f"a ```\n{CALL}\n```\n", 1),
        (f"``\n{CALL}\n``\n", 1),
        (f"`{CALL}`", 1),
        (f"```python\nx\n```\n{CALL}\n```\ny\n```\n", 1),
        ("```\n```\n", 0),
        ("```\n\n", 0),
        (f"```\n{CALL}\n``", 1),
        (f"```{' ' * LONGEST_LINE}\n{CALL}\n```\n", 1),
        (f"```\n{' ' * LONGEST_GAP} {CALL}\n```\n", 1),
        (f"```\n{CALL}{' ' * LONGEST_GAP}\n```\n", 1),
    ],
)
def test_a_fence_that_holds_anything_else_stays_and_so_do_its_calls(text: str, calls: int) -> None:
    used = text
    for block in (CALL, USE):
        used = used.replace(block, "")
    assert said(text) == (used, calls)


def test_a_fence_that_is_never_closed_reaches_to_the_end_of_its_message() -> None:
    assert said(f"a\n```json\n{CALL}\n") == ("a\n", 1)
    played = play(TextDelta(f"```\n{CALL}", "m0"), TextDelta("b", "m1"), TurnEnd())
    assert played.text == "b"
    assert [type(event) for event in played.events if not isinstance(event, CallProgress)] == [
        *(ToolCall, TextDelta, TurnEnd)
    ]


@pytest.mark.parametrize(
    ("policy", "left", "calls"), [("text", f"```\n{OTHER}\n```\n", 0), ("call", "", 1)]
)
def test_the_policy_decides_whether_a_block_is_a_call_that_takes_its_fence(
    policy: Policy, left: str, calls: int
) -> None:
    assert said(f"```\n{OTHER}\n```\n", policy=policy) == (left, calls)


def test_a_call_of_an_unknown_tool_in_a_fence_fails_the_turn_if_it_must() -> None:
    played = play(TextDelta(f"```\n{OTHER}\n```\n"), TurnEnd(), policy="fail")
    assert (played.text, played.ends) == ("```\n", ["unknown_tool", "failed"])


def test_a_call_keeps_its_place_before_the_text_behind_its_fence() -> None:
    text = f"a\n```\n{CALL}\n```\nb\n```\n{CALL}\nc"
    told = [
        event.text if isinstance(event, TextDelta) else type(event).__name__
        for event in play(TextDelta(text), TurnEnd()).events
    ]
    assert told == ["a\n", "ToolCall", "b\n```\n", "ToolCall", "\nc", "TurnEnd"]


def test_progress_is_told_while_a_call_waits_for_the_end_of_its_fence() -> None:
    parts = ["```\n", CALL, "\n", "```", "\n", "b"]
    played = play(*(TextDelta(part, at=float(at)) for at, part in enumerate(parts)))
    assert [(type(event), event.at) for event in played.events] == [
        *((CallProgress, 1.0), (CallProgress, 2.0), (CallProgress, 3.0)),
        *((ToolCall, 4.0), (TextDelta, 5.0)),
    ]


@pytest.mark.parametrize("end", [ResponseEnd(), TurnEnd("length"), ToolCall("c0", "g", "{}")])
def test_a_call_that_waits_is_whole_and_comes_out_before_what_ends_it(end: Event) -> None:
    played = play(TextDelta(f"```\n{CALL}\n"), end)
    events = [event for event in played.events if not isinstance(event, CallProgress)]
    assert isinstance(events[0], ToolCall)
    assert events[0].name == "f"
    assert events[1:] == [evolve(end, index=1) if isinstance(end, ToolCall) else end]


# -- how little is held ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "released"),
    [
        (["a `b`", " c"], ["a `b`", " c"]),
        (["`", "b`"], ["", "`b`"]),
        (["a\n``", "`", "py", "\n", "x"], ["a\n", "", "", "", "```py\nx"]),
        (["```", "py t"], ["", "```py t"]),
        (["```py\n", "  ", "x"], ["", "", "```py\n  x"]),
        (["```py\nx\n", "``", "`\n", "y"], ["```py\nx\n", "``", "`\n", "y"]),
        (["~", "5"], ["", "~5"]),
        (["  ", "```", "\n"], ["  ", "", ""]),
        ([f"```\n{CALL}\n", "``", "x"], ["", "", "```\n\n``x"]),
    ],
)
def test_only_what_may_become_a_fence_around_a_call_waits(
    parts: list[str], released: list[str]
) -> None:
    finder = scanner()
    out = [finder.feed(part) for part in parts]
    assert ["".join(piece for piece in pieces if isinstance(piece, str)) for pieces in out] == (
        released
    )


@pytest.mark.parametrize(
    ("before", "text", "passes"),
    [
        ("", "plain words\nin lines\n", True),
        ("", "some `code` and ~5 of them", True),
        ("a ", "```", True),
        ("", "```", False),
        ("a\n", "`", False),
        ("a", "\n  ~", False),
        ("```py\nx", " = 1\ny = 2\n", True),
        ("```py\nx\n", "``", False),
        ("```", "x", False),
        ("```\n", " ", False),
    ],
)
def test_text_passes_at_a_glance_unless_a_line_may_be_a_fences(
    before: str, text: str, passes: bool
) -> None:
    one, several = scanner(), scanner()
    for finder in (one, several):
        finder.feed(before)
    assert one.lets_pass(text) is passes
    assert several.let_pass(list(text)) is passes


@law
@given(split_texts())
def test_outside_a_block_no_more_is_held_than_a_line_and_a_gap(parts: list[str]) -> None:
    finder = scanner()
    held = 0
    for part in parts:
        held += len(part) - len(written(finder.feed(part)))
        if not finder.in_block and not finder.has_call:
            assert held <= LONGEST_LINE + LONGEST_GAP + len("<tool_call>")
    finder.close()
    assert not finder.holding


def test_calls_in_one_fence_that_are_too_long_together_leave_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is held in memory is bounded."""
    fenced = f"```\n{CALL}\n{CALL}\n```\n"
    monkeypatch.setattr("stages.tool_calls.fences.LONGEST_BLOCK", 2 * len(CALL))
    assert said(fenced) == ("", 2)
    monkeypatch.setattr("stages.tool_calls.fences.LONGEST_BLOCK", 2 * len(CALL) - 1)
    assert said(fenced) == ("```\n\n\n```\n", 2)


# -- laws ------------------------------------------------------------------------------------------


@law
@given(split_texts())
@example(["```\n", f"{CALL}\n``", "`\n", "```"])
def test_what_comes_out_does_not_depend_on_the_split(parts: list[str]) -> None:
    whole = scan(["".join(parts)])
    assert scan(parts) == whole
    assert scan("".join(parts)) == whole


@law
@given(split_texts())
def test_passing_at_a_glance_changes_nothing(parts: list[str]) -> None:
    finder = scanner()
    out: list[Piece] = []
    for part in parts:
        out += [part] if finder.lets_pass(part) else finder.feed(part)
    assert joined([*out, *finder.close()]) == scan(parts)


@law
@given(split_texts())
def test_without_a_call_that_takes_its_fence_the_text_and_blocks_are_the_scanners(
    parts: list[str],
) -> None:
    plain = scan(parts, BlockScanner(DEFAULT_PATTERNS))
    for finder in (scanner(unwraps=False), FenceScanner(DEFAULT_PATTERNS, lambda _: False)):
        found = scan(parts, finder)
        assert [p if isinstance(p, str) else evolve(p, fenced=False) for p in found] == plain


WRAPPED: Final = re.compile(
    r"""([ \t]*)(?P<fence>(?P<mark>[`~])(?P=mark){2,})[ \t]*[\w.+#-]*[ \t\r]*\n
    \s*(?:\x01\s*)+(?:\Z|(?P=fence)(?P=mark)*[ \t\r]*(?:\n|\Z))""",
    re.VERBOSE,
)
OPENING: Final = re.compile(r"[ \t]*(`{3,}(?=[^`\n]*$)|~{3,})", re.MULTILINE)


def reference(text: str) -> str:
    """What is left of a whole text in which \\x01 stands for a call that takes its fence along."""
    out, at, fence = "", 0, ""
    while at < len(text):
        if not fence and (wrapped := WRAPPED.match(text, at)) is not None:
            out += wrapped[1] + "\x01" * wrapped[0].count("\x01")
            at = wrapped.end()
            continue
        end = text.find("\n", at) + 1 or len(text)
        line = text[at:end]
        marks = line.strip(" \t\r\n")
        if not fence:
            opening = OPENING.match(line)
            fence = opening[1] if opening else ""
        elif set(marks) == {fence[0]} and len(marks) >= len(fence):
            fence = ""
        out, at = out + line, end
    return out


@law
@given(texts)
def test_what_comes_out_is_what_a_reader_of_the_whole_text_leaves(text: str) -> None:
    def shown(pieces: Sequence[Piece]) -> str:
        marks = [p if isinstance(p, str) else "\x01" if is_known(p) else "\x02" for p in pieces]
        return "".join(marks)

    plain = shown(scan([text], BlockScanner(DEFAULT_PATTERNS)))
    assert shown(scan([text])) == reference(plain)


@law
@given(split_texts())
def test_after_close_a_scanner_begins_anew(parts: list[str]) -> None:
    finder = scanner()
    first = scan(parts, finder)
    assert finder.lets_pass("a")
    finder.close()
    assert scan(parts, finder) == first


def test_a_new_message_is_a_new_document() -> None:
    """A fence that one message left open does not reach into the next."""
    turn = Turn(output_mode="obsidian-xml")
    played = play(TextDelta("```\na", "m0"), TextDelta(f"b {USE}", "m1"), TurnEnd(), turn=turn)
    assert len(played.calls) == 1
    burst = [TextDelta("```\n", "m0"), TextDelta("a", "m0"), TextDelta("b", "m1")]
    recipe = assembly.recipe(Settings())
    out = recipe.process([*burst, TextDelta(f"\n{USE}", "m1"), TurnEnd()], turn)
    assert len([event for event in out if isinstance(event, ToolCall)]) == 1


# -- cost ------------------------------------------------------------------------------------------


def calls_made(text: str, step: int) -> int:
    """How many functions are called to scan a text that comes in pieces."""
    finder = scanner()
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    parts = [text[at : at + step] for at in range(0, len(text), step)]
    sys.setprofile(count)
    try:
        for part in parts:
            finder.feed(part)
        finder.close()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("step", [1, 7, 1_000_000])
@pytest.mark.parametrize(
    "text",
    ["```py\nx = 1\n```\n", f"```\n{CALL}\n```\n", "```\n", "`\n", f"```\n{CALL}\nx\n```\n"],
)
def test_the_work_grows_with_the_text(text: str, step: int) -> None:
    few, many = calls_made(text * 20, step), calls_made(text * 200, step)
    assert many < few * 11


def test_the_work_grows_with_the_calls_in_one_fence() -> None:
    few, many = (calls_made("```\n" + f"{CALL}\n" * n, 1_000_000) for n in (50, 500))
    assert many < few * 11


# -- which blocks are in a fence -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fenced"),
    [
        (USE, False),
        (f"```\n{USE}\n```", True),
        (f"```xml\na\n{USE}\nb\n```\n{USE}", None),
        (f"```xml title\n{USE}", True),
        (f"~~~ `x`\n{USE}", True),
        (f"``` `x`\n{USE}", False),
        (f"```x`\n{USE}", False),
        (f"```\nx\n```\n{USE}", False),
        (f"```\nx\n``\n{USE}", True),
        (f"```\nx\n```y\n{USE}", True),
        (f"````\nx\n```\n{USE}", True),
        (f"```\nx\n````  \n{USE}", False),
        (f"```\nx\n~~~\n{USE}", True),
        (f"```\nx\n  ```\n{USE}", False),
        (f"a ```\n{USE}", False),
        (f"``` {USE}", True),
        (f"```\r\n{USE}", True),
        (f"```\r\nx\r\n```\r\n{USE}", False),
    ],
)
def test_a_block_tells_whether_it_stands_in_a_fence(text: str, fenced: bool | None) -> None:
    expected = [True, False] if fenced is None else [fenced]
    for parts in ([text], list(text)):
        for unwraps in (True, False):
            found = blocks(scan(parts, scanner(unwraps=unwraps)))
            assert [block.fenced for block in found] == expected


def test_what_stands_in_a_block_is_no_fence() -> None:
    note = "<use_tool><name>write</name><text>\n```js\nx\n```\n```\n</text></use_tool>"
    found = blocks(scan([f"{note}\n{USE}\n```\n{note}\n{USE}\n```\n{USE}"]))
    assert [block.fenced for block in found] == [False, False, True, True, False]


def test_tools_that_are_declared_are_called_from_fences_too() -> None:
    turn = Turn(tools=(Tool("f"),), output_mode="obsidian-xml")
    assert said(f"```\n{USE}\n```\n", turn) == ("```\n\n```\n", 1)
