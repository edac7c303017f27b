from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import inf, isfinite, nan
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bench.labels import Box, cut, text_width
from pipeline.bench.picture import svg, write_svg
from pipeline.bench.results import Results
from pipeline.errors import UsageError

SVG = "{http://www.w3.org/2000/svg}"
TIMES = st.floats() | st.floats(0.1, 100) | st.sampled_from([0.0, -1.0, 3.0, inf, -inf, nan])
WORDS = st.text(max_size=40) | st.sampled_from(
    ["straight", "a & <b>", "\x00\x1b", "much to say " * 9]
)
COORDINATES = ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy")


@st.composite
def books(draw: st.DrawFn) -> Results:
    results = Results()
    for _ in range(draw(st.integers(0, 4))):
        scenario, load, unit = draw(WORDS), draw(WORDS), draw(st.sampled_from(["ms", "µs", ""]))
        for arm in draw(st.lists(WORDS, max_size=4)):
            results.spread(scenario, load, arm, unit, draw(st.lists(TIMES, max_size=20)))
    return results


def one(*values: float, arm: str = "sluice") -> Results:
    results = Results()
    results.spread("burst", "16 streams", arm, "ms", values)
    return results


@frozen
class Drawn:
    """An element, and where the panel that it is in begins."""

    element: ET.Element
    across: float = 0
    down: float = 0

    def points(self) -> Iterator[tuple[float, float]]:
        if self.element.tag == f"{SVG}path":
            yield from self.way()
        else:
            at = {name: float(self.element.get(name, 0)) for name in COORDINATES}
            for x in ("x", "x1", "x2", "cx"):
                if x in self.element.keys():  # noqa: SIM118
                    yield at[x] + self.across, at[x.replace("x", "y")] + self.down

    def way(self) -> Iterator[tuple[float, float]]:
        x, y = self.across, self.down
        for letter, number in re.findall(r"([MHV ])([^MHV ]+)", self.element.get("d", "")):
            if letter in "MH":
                x = float(number) + self.across
            else:
                y = float(number) + self.down
                yield x, y

    def box(self) -> Box:
        """The room of a text."""
        ((x, y),) = self.points()
        kinds = self.element.get("class", "").split()
        size = 16 if "title" in kinds else 11 if "tick" in kinds else 12
        width = text_width(self.element.text or "", size)
        left = x - width if "end" in kinds else x - width / 2 if "middle" in kinds else x
        return Box(left, y - 0.75 * size, left + width, y + 0.2 * size)


def drawn(picture: str, tag: str = "") -> list[Drawn]:
    root = ET.fromstring(picture)  # noqa: S314
    found = [Drawn(child) for child in root if child.tag != f"{SVG}g"]
    for panel in root.iter(f"{SVG}g"):
        across, down = map(float, re.findall(r"[\d.]+", panel.get("transform", "")))
        found += [Drawn(child, across, down) for child in panel]
    return [each for each in found if tag in each.element.tag]


def texts(picture: str) -> list[str]:
    return [each.element.text or "" for each in drawn(picture, "text")]


def view(picture: str) -> Box:
    return Box(*map(float, ET.fromstring(picture).get("viewBox", "").split()))  # noqa: S314


def of_kind(picture: str, tag: str, kind: str) -> list[Drawn]:
    return [each for each in drawn(picture, tag) if kind in each.element.get("class", "").split()]


# -- laws ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(books())
def test_everything_is_inside_the_picture(results: Results) -> None:
    picture = svg(results)
    frame = view(picture)
    for each in drawn(picture):
        for x, y in each.points():
            assert isfinite(x)
            assert isfinite(y)
            assert frame.holds(Box(x, y, x, y)), ET.tostring(each.element)
    assert all(frame.holds(text.box()) for text in drawn(picture, "text"))


@settings(deadline=None)
@given(books())
def test_no_text_stands_on_another(results: Results) -> None:
    told = [each for each in drawn(svg(results), "text") if each.element.text]
    for one, other in combinations(told, 2):
        assert not one.box().touches(other.box()), (one.element.text, other.element.text)


@settings(deadline=None)
@given(books())
def test_no_label_stands_on_a_curve(results: Results) -> None:
    picture = svg(results)
    for label in of_kind(picture, "text", "label"):
        for curve in drawn(picture, "path"):
            for (x, y), (to_x, to_y) in pairwise(curve.way()):
                assert not label.box().touches(Box(x, y, to_x, y))
                assert not label.box().touches(Box(to_x, to_y, to_x, y))


@settings(deadline=None)
@given(books())
def test_a_curve_rises_from_none_to_all_and_never_goes_back(results: Results) -> None:
    for curve in drawn(svg(results), "path"):
        points = [(x - curve.across, y - curve.down) for x, y in curve.way()]
        assert points == sorted(points, key=lambda point: (point[0], -point[1]))
        assert (points[0][1], points[-1][1]) == (268, 78)


@settings(deadline=None)
@given(books())
def test_every_arm_is_named_and_has_a_curve_if_it_has_values(results: Results) -> None:
    picture = svg(results)
    arms = [[v for v in spread.values if v == v] for spread in results.spreads.values()]  # noqa: PLR0124
    assert len(drawn(picture, "path")) == sum(bool(values) for values in arms)
    assert len(drawn(picture, "circle")) == 2 * sum(bool(values) for values in arms)
    for values in arms:
        few = f"({len(values) or 'no'} value{'s' * (len(values) != 1)})"
        assert any(few in text for text in texts(picture))


# -- tables ----------------------------------------------------------------------------------------


def test_the_dots_of_an_arm_are_on_its_curve_and_say_their_values() -> None:
    picture = svg(one(*range(1, 1001)))
    assert texts(picture)[1:3] == ["burst", "16 streams"]
    said = [each.element.text for each in of_kind(picture, "text", "label")]
    assert said == ["sluice", "p50 500 ms", "p99 990 ms"]
    (curve,) = drawn(picture, "path")
    way = list(curve.way())
    for dot in drawn(picture, "circle"):
        ((x, y),) = dot.points()
        column = [at for along, at in way if along == x]
        before = [at for along, at in way if along < x][-1]
        assert min(column) <= y <= before


@pytest.mark.parametrize(
    ("values", "said"),
    [((), "sluice (no values)"), ((1,), "sluice (1 value)"), ((1, 2, 3), "sluice (3 values)")],
)
def test_few_values_are_counted(values: Sequence[float], said: str) -> None:
    assert said in texts(svg(one(*values)))


def test_arms_that_lie_too_close_for_labels_have_a_legend() -> None:
    results, random = Results(), Random(1)  # noqa: S311
    for arm in range(6):
        values = [random.lognormvariate(arm / 50, 0.5) for _ in range(200)]
        results.spread("burst", "16 streams", f"arm {arm}", "ms", values)
    picture = svg(results)
    said = [each.element.text or "" for each in of_kind(picture, "text", "label")]
    assert len(said) == 6
    assert all(re.fullmatch(r"arm \d: p50 [\d.]+ ms, p99 [\d.]+ ms", text) for text in said)


def test_an_arm_has_one_colour_in_all_panels() -> None:
    results = Results()
    for load, arms in (("1", ("straight", "sluice")), ("2", ("sluice",))):
        for arm in arms:
            results.spread("burst", load, arm, "ms", [1, 2, 3])
    kinds = [each.element.get("class") for each in drawn(svg(results), "path")]
    assert kinds == ["curve arm0", "curve arm1", "curve arm1"]


@pytest.mark.parametrize(
    ("panels", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (8, 2, 4)]
)
def test_panels_stand_in_two_columns(panels: int, columns: int, rows: int) -> None:
    results = Results()
    for load in range(panels):
        results.spread("burst", f"{load} streams", "sluice", "ms", [1, 2])
    titles = of_kind(svg(results), "text", "title")
    assert len(titles) == panels
    assert len({title.across for title in titles}) == columns
    assert len({title.down for title in titles}) == rows


def test_units_do_not_share_an_axis() -> None:
    results = one(1, 2)
    results.spread("burst", "16 streams", "straight", "µs", [1, 2])
    said = texts(svg(results))
    assert said.count("burst") == 2
    assert {"ms (logarithmic)", "µs (logarithmic)"} <= set(said)


def test_a_picture_needs_nothing_else_and_suits_light_and_dark() -> None:
    picture = svg(one(1, 2, 3, arm="<script>&\x00"))
    assert "<script" not in picture
    assert "sluice" not in picture
    assert any(text.startswith("<script>&\ufffd") for text in texts(picture))
    assert not re.search(r"href|url\(|@import|src=", picture)
    assert picture.count("http") == 1
    assert "@media(prefers-color-scheme:dark)" in picture


def test_many_values_make_no_large_picture() -> None:
    random = Random(1)  # noqa: S311
    assert len(svg(one(*(random.lognormvariate(0, 1) for _ in range(50_000))))) < 30_000


def test_a_book_without_distributions_says_so() -> None:
    assert texts(svg(Results())) == ["No distributions were measured"]


@pytest.mark.parametrize(
    ("text", "width", "left"),
    [("short", 100, "short"), ("much too long", 60, "much to…"), ("日本語日本語", 40, "日本…")],
)
def test_a_text_is_cut_to_its_room(text: str, width: float, left: str) -> None:
    assert cut(text, width) == left
    assert text_width(left) <= width


def test_the_picture_is_written(tmp_path: Path) -> None:
    results = one(1, 2, 3)
    write_svg(str(tmp_path / "run.svg"), results)
    assert (tmp_path / "run.svg").read_text("utf-8") == svg(results)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "such.svg")
    with pytest.raises(UsageError) as raised:
        write_svg(path, Results())
    assert str(raised.value) == f"{path}: cannot be written: No such file or directory"
