"""The results of a run as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from pipeline.bench.results import Figure, Results
from pipeline.errors import UsageError
from pipeline.terminal import Paint

WIDTH: Final = 100
_HEADS: Final = ("load", "quantity", "median", "middle half", "goal")
_GAP: Final = "  "
_LONGEST_UNIT: Final = 12
_LONGEST_VERDICT: Final = len("MISSED")

Row = tuple[str, str, str, str, str]


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    if not isfinite(value) or not 100 <= abs(value) < 1e9:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def table(results: Results, *, titles: Mapping[str, str], paint: Paint) -> str:
    """A row for every figure, grouped by scenario, each with a title line."""
    figures = list(results.figures.values())
    rows = [_row(figure) for figure in figures]
    widths = _widths(rows)
    lines = [paint("dim", line) for line in _lines(_HEADS, widths)]
    for scenario in dict.fromkeys(figure.scenario for figure in figures):
        lines += ["", *_heading(scenario, titles.get(scenario, ""), paint)]
        for figure, row in zip(figures, rows, strict=True):
            if figure.scenario == scenario:
                first, *rest = _lines(row, widths)
                lines += [_judged(first, figure, widths, paint), *rest]
    return "".join(f"{line}\n" for line in lines)


def write_json(path: str, results: Results, about: Mapping[str, Any]) -> None:
    """Write the description of the run and every sample."""
    content = {"about": about, **results.as_json()}
    try:
        Path(path).write_text(f"{json.dumps(content, indent=2, ensure_ascii=False)}\n", "utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _row(figure: Figure) -> Row:
    unit = figure.unit
    if len(unit) > _LONGEST_UNIT:
        unit = f"{unit[: _LONGEST_UNIT - 1]}…"
    median = _one_line(f"{number(figure.median)} {unit}")
    middle = " – ".join(map(number, figure.middle))
    return _one_line(figure.load), _one_line(figure.quantity), median, middle, _goal(figure)


def _goal(figure: Figure) -> str:
    """A goal is exact, so it is not rounded as measurements are."""
    if figure.goal is None:
        return ""
    return f"{'≥' if figure.at_least else '≤'} {figure.goal:,.10g}"


def _widths(rows: Sequence[Row]) -> list[int]:
    """Column widths: numbers take what they need, the two text columns share the rest."""
    load, quantity, *needs = (max(map(len, column)) for column in zip(_HEADS, *rows, strict=True))
    left = WIDTH - _LONGEST_VERDICT - len(_GAP) * (len(_HEADS) + 1) - sum(needs)
    quantity = min(quantity, max(left // 2, left - load))
    return [min(load, left - quantity), quantity, *needs]


def _lines(row: Row, widths: Sequence[int]) -> Iterator[str]:
    """A row as text; long texts are wrapped within their column."""
    words = [wrap(text, width) for text, width in zip(row[:2], widths[:2], strict=True)]
    numbers = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
    for *cells, beside in zip_longest(*words, [_GAP.join(numbers)], fillvalue=""):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths[:2], strict=True))
        yield _GAP + _GAP.join((*padded, beside)).rstrip()


def _judged(line: str, figure: Figure, widths: Sequence[int], paint: Paint) -> str:
    if figure.met is None:
        return line
    end = sum(widths) + len(_GAP) * (len(widths) + 1)
    verdict = paint("green", "ok") if figure.met else paint("red", "MISSED")
    return f"{line:<{end}}{verdict}"


def _heading(scenario: str, title: str, paint: Paint) -> Iterator[str]:
    whole = _one_line(f"{scenario}: {title}" if title else scenario)
    first, *rest = wrap(whole, WIDTH) or [""]
    name, colon, said = first.partition(":")
    yield f"{paint('bold', name)}{colon}{said}"
    yield from rest


def _one_line(text: str) -> str:
    return " ".join(text.split())
