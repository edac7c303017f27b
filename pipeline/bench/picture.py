"""Draws the distributions of the measured values as a self-contained SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from attrs import frozen

from pipeline.bench.axis import Axis
from pipeline.bench.labels import SIZE, Board, Box, Label, cut, dots, stairs, text_width
from pipeline.bench.report import number
from pipeline.bench.results import Results, Spread, percentile
from pipeline.errors import UsageError

_PANEL: Final = 540
_EDGE: Final = 16
_HEAD: Final = 44
_LEFT, _RIGHT, _TOP = 52, 28, 58
"""Around a panel's plot."""
_PLOT_WIDTH: Final = _PANEL - _LEFT - _RIGHT
_PLOT_HEIGHT: Final = 210
_HEADROOM: Final = 20
"""Above the line of all values, for labels."""
_BELOW: Final = 46
"""For the ticks and the unit."""
_LEGEND_LINE: Final = 18
_LONGEST_ARM: Final = 150
_LONGEST_UNIT: Final = 60
_TICK_SIZE: Final = 11
_MARKS: Final = ((0.5, "p50"), (0.99, "p99"))
_FEW: Final = 100
"""With fewer values the p99 is the largest one, so their number is shown."""
_COLOURS: Final = (
    ("#0550ae", "#79c0ff"),
    ("#bc4c00", "#ffa657"),
    ("#116329", "#56d364"),
    ("#6639ba", "#d2a8ff"),
    ("#a40e26", "#ff9492"),
    ("#57606a", "#c9d1d9"),
)
"""Colours of the arms, for light and dark; labels name the arms too."""
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(results: Results) -> str:
    """A panel for every load of every scenario, an ECDF for every arm."""
    panels = _panels(results)
    columns = min(2, max(1, len(panels)))
    body: list[str] = []
    bottom = _HEAD
    for start in range(0, len(panels), columns):
        row = panels[start : start + columns]
        for column, panel in enumerate(row):
            place = f"translate({_EDGE + column * _PANEL} {bottom})"
            body += [f'<g transform="{place}">', *panel.drawn(), "</g>"]
        bottom += max(panel.height for panel in row)
    width, height = columns * _PANEL + 2 * _EDGE, bottom + _EDGE
    caption = "Share of the values that are no larger; dots mark p50 and p99"
    space, size = "http://www.w3.org/2000/svg", f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="{space}" viewBox="0 0 {width} {height}" {size} role="img">',
        f"<title>{caption}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" x="0" y="0" {size}/>',
        _text(_EDGE + 8, 28, caption if panels else "No distributions were measured", "dim"),
        *body,
        "</svg>",
    )
    return "".join(f"{line}\n" for line in lines)


def write_svg(path: str, results: Results) -> None:
    """Write the picture of a run."""
    try:
        Path(path).write_text(svg(results), "utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


@frozen
class _Curve:
    """The ECDF of one arm, in pixels of its panel."""

    spread: Spread
    values: list[float]
    colour: str
    points: list[tuple[float, float]]
    marks: list[tuple[float, float]]

    @classmethod
    def of(cls, spread: Spread, axis: Axis, colour: str) -> _Curve:
        values = sorted(value for value in spread.values if not isnan(value))
        # Of many values within half a pixel, only the last one is drawn.
        rises = {_across(axis, value): _up(n / len(values)) for n, value in enumerate(values, 1)}
        marks = [(_across(axis, percentile(values, at)), _up(at)) for at, _ in _MARKS if values]
        return cls(spread, values, colour, list(rises.items()), marks)

    @property
    def legend(self) -> list[str]:
        """The label of each mark."""
        unit = cut(self.spread.unit, _LONGEST_UNIT)
        return [
            f"{name} {number(percentile(self.values, at))} {unit}".rstrip() for at, name in _MARKS
        ]

    @property
    def name(self) -> str:
        """The name of the curve's arm."""
        arm, count = cut(self.spread.arm, _LONGEST_ARM), len(self.values)
        if count >= _FEW:
            return arm
        return f"{arm} ({count or 'no'} value{'s' * (count != 1)})"

    def drawn(self) -> Iterator[str]:
        if self.values:
            (x, y), *rest = self.points
            way = "".join(f"H{x:g}V{y:g}" for x, y in rest)
            yield f'<path class="curve {self.colour}" d="M{x:g} {_up(0):g}V{y:g}{way}"/>'
        for x, y in self.marks:
            yield f'<circle class="dot {self.colour}" cx="{x:g}" cy="{y:g}" r="3.5"/>'


@frozen
class _Panel:
    """The arms of one load, with a legend for curves without labels."""

    scenario: str
    load: str
    unit: str
    axis: Axis
    curves: list[_Curve]
    labels: list[Label]
    legend: list[_Curve]

    @classmethod
    def of(cls, spreads: Sequence[Spread], colours: Sequence[str]) -> _Panel:
        axis = Axis.around(value for spread in spreads for value in spread.values)
        curves = [
            _Curve.of(spread, axis, colour) for spread, colour in zip(spreads, colours, strict=True)
        ]
        labels = _labels([curve for curve in curves if curve.values])
        legend = [curve for curve in curves if not (labels and curve.values)]
        first = spreads[0]
        return cls(first.scenario, first.load, first.unit, axis, curves, labels, legend)

    @property
    def height(self) -> int:
        return _TOP + _PLOT_HEIGHT + _BELOW + _LEGEND_LINE * len(self.legend) + _EDGE

    def drawn(self) -> Iterator[str]:
        yield _text(_LEFT, 20, cut(self.scenario, _PLOT_WIDTH, 16), "title")
        yield _text(_LEFT, 40, cut(self.load, _PLOT_WIDTH), "dim")
        yield from self._grid()
        for curve in self.curves:
            yield from curve.drawn()
        for label in self.labels:
            if label.leader is not None:
                yield _line(*label.point, *label.leader, f"leader {label.kind}")
            x, side = (label.box.right, " end") if label.leftwards else (label.box.left, "")
            for y, text in label.baselines:
                yield _text(x, y, text, f"label {label.kind}{side}")
        yield from self._legend()

    def _grid(self) -> Iterator[str]:
        right, floor = _LEFT + _PLOT_WIDTH, _up(0)
        for percent in (0, 25, 50, 75, 100):
            y = _up(percent / 100)
            yield _line(_LEFT, y, right, y, "grid")
            yield _text(_LEFT - 8, y + 4, f"{percent} %", "tick end")
        if not any(curve.values for curve in self.curves):
            return
        for share, label in self.axis.ticks(_PLOT_WIDTH, lambda text: text_width(text, _TICK_SIZE)):
            x = _LEFT + share * _PLOT_WIDTH
            yield _line(x, _TOP, x, floor, "grid")
            yield _text(x, floor + 18, label, "tick middle")
        unit = cut(self.unit, _PLOT_WIDTH / 2)
        yield _text(_LEFT + _PLOT_WIDTH / 2, floor + 36, f"{unit} (logarithmic)", "dim middle")

    def _legend(self) -> Iterator[str]:
        for row, curve in enumerate(self.legend):
            y = _up(0) + _BELOW + 10 + row * _LEGEND_LINE
            yield _line(_LEFT, y - 4, _LEFT + 22, y - 4, f"curve {curve.colour}")
            entry = f"{curve.name}: {', '.join(curve.legend)}" if curve.values else curve.name
            yield _text(_LEFT + 30, y, cut(entry, _PLOT_WIDTH - 30), f"label {curve.colour}")


def _panels(results: Results) -> list[_Panel]:
    arms = list(dict.fromkeys(spread.arm for spread in results.spreads.values()))
    together: dict[tuple[str, str, str], list[Spread]] = {}
    for spread in results.spreads.values():
        # One axis has one unit.
        together.setdefault((spread.scenario, spread.load, spread.unit), []).append(spread)
    return [
        _Panel.of(spreads, [f"arm{arms.index(spread.arm) % len(_COLOURS)}" for spread in spreads])
        for spreads in together.values()
    ]


def _labels(curves: Sequence[_Curve]) -> list[Label]:
    """Labels beside the marks of all curves, or none where they do not all fit."""
    lines = [line for curve in curves for line in stairs(curve.points, _up(0))]
    marks = [dot for curve in curves for dot in dots(curve.marks, 4)]
    frame = Box(_LEFT + 2, _TOP, _LEFT + _PLOT_WIDTH, _up(0) - 2)
    board = Board(frame, lines + marks)
    ordered = sorted(curves, key=lambda curve: curve.marks[0])
    for which in range(len(_MARKS)):
        for curve in ordered:
            leftwards = curve is ordered[0] and len(ordered) > 1
            text, mark = [curve.legend[which]], curve.marks[which]
            if which == 0:
                text.insert(0, curve.name)
            if not board.put(text, curve.colour, mark, leftwards=leftwards):
                return []
    return board.labels


def _across(axis: Axis, value: float) -> float:
    return _LEFT + round(axis.share(value) * _PLOT_WIDTH * 2) / 2


def _up(share: float) -> float:
    return round(_TOP + _PLOT_HEIGHT - share * (_PLOT_HEIGHT - _HEADROOM), 1)


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    shown = escape(_NOT_XML.sub("\ufffd", text))
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{shown}</text>'


def _style() -> str:
    def scheme(page: str, ink: str, dim: str, grid: str, colours: Sequence[str]) -> str:
        arms = "".join(
            f".arm{n}{{stroke:{colour}}}.dot.arm{n},.label.arm{n}{{fill:{colour}}}"
            for n, colour in enumerate(colours)
        )
        return (
            f".page{{fill:{page}}}text{{fill:{ink}}}.dim,.tick{{fill:{dim}}}"
            f".grid{{stroke:{grid}}}{arms}.label,.dot{{stroke:{page}}}"
        )

    light, dark = zip(*_COLOURS, strict=True)
    return (
        f"text{{font:{SIZE}px system-ui,-apple-system,'Segoe UI',sans-serif}}"
        ".title{font-size:16px;font-weight:600}.label{paint-order:stroke;stroke-width:3px}"
        f".tick{{font-size:{_TICK_SIZE}px}}.middle{{text-anchor:middle}}.end{{text-anchor:end}}"
        ".curve{fill:none;stroke-width:2px;stroke-linejoin:round}.dot{stroke-width:1.5px}"
        ".grid{stroke-width:1px}.leader{stroke-width:1px;opacity:.6}"
        + scheme("#ffffff", "#1f2328", "#59636e", "#e4e8ec", light)
        + "@media(prefers-color-scheme:dark){"
        + scheme("#0d1117", "#e6edf3", "#9198a1", "#262c36", dark)
        + "}"
    )
