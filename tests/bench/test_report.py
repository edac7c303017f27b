from __future__ import annotations

import io
import json
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.report import WIDTH, number, table, write_json
from pipeline.bench.results import Results
from pipeline.errors import UsageError
from pipeline.terminal import Paint


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


PLAIN = Paint(io.StringIO())
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
WORDS = st.text(st.characters(exclude_characters="–"), max_size=90)


@st.composite
def books(draw: st.DrawFn) -> Results:
    results = Results()
    for _ in range(draw(st.integers(0, 6))):
        scenario, load, quantity = (draw(WORDS) for _ in range(3))
        goal, at_least = draw(st.none() | FINITE), draw(st.booleans())
        for sample in draw(st.lists(FINITE, min_size=1, max_size=3)):
            unit = draw(st.text(max_size=20))
            results.add(scenario, load, quantity, unit, sample, goal=goal, at_least=at_least)
    return results


def a_run() -> Results:
    results = Results()
    for cpu, rate, added in (
        (9.414, 81_234.0, 0.431),
        (9.2, 80_990.0, 0.44),
        (9.9, 90_000.0, 0.41),
    ):
        results.add("burst", "16 streams, line by line", "CPU a chunk", "µs", cpu, goal=10)
        results.add("burst", "16 streams", "chunks", "/s", rate, goal=85_000, at_least=True)
        results.add("paced", "1 stream", "added latency", "ms", added)
    return results


def test_a_run_is_a_table_by_scenario() -> None:
    titles = {"burst": "as fast as the backend can", "paced": "as a model writes"}
    assert table(a_run(), titles=titles, paint=PLAIN) == dedent(
        """\
          load                      quantity          median      middle half      goal

        burst: as fast as the backend can
          16 streams, line by line  CPU a chunk      9.41 µs      9.31 – 9.66      ≤ 10  ok
          16 streams                chunks         81,200 /s  81,100 – 85,600  ≥ 85,000  MISSED

        paced: as a model writes
          1 stream                  added latency   0.431 ms     0.42 – 0.435
        """
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (81_234.0, "81,200"),
        (9.4149, "9.41"),
        (0.43, "0.43"),
        (0, "0"),
        (99.96, "100"),
        (999.6, "1,000"),
        (123.4, "123"),
        (-81_250.1, "-81,300"),
        (1_234_567.0, "1,230,000"),
        (0.000_012_34, "1.23e-05"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_number_has_three_digits_that_matter(value: float, written: str) -> None:
    assert number(value) == written


def test_a_goal_is_written_as_it_was_set() -> None:
    results = Results()
    results.add("s", "l", "q", "B", 1, goal=81_234)
    assert "≤ 81,234  ok" in table(results, titles={}, paint=PLAIN)


def test_on_a_terminal_what_was_met_is_green_and_what_was_missed_is_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = table(a_run(), titles={"burst": "fast"}, paint=Paint(Screen()))
    assert "\x1b[32mok\x1b[0m\n" in text
    assert "\x1b[31mMISSED\x1b[0m\n" in text
    assert "\x1b[1mburst\x1b[0m: fast\n" in text


def test_words_that_are_too_long_for_their_column_go_on_below() -> None:
    results = Results()
    load = "256 streams of 50 chunks a second, each with two tool calls and with much to say"
    results.add("paced", load, "memory", "kB", 12, goal=20)
    first, *rest = table(results, titles={}, paint=PLAIN).splitlines()[3:]
    assert first.endswith("≤ 20  ok")
    assert rest
    words = first.partition("memory")[0].split() + " ".join(rest).split()
    assert words == load.split()


def test_figures_of_a_scenario_stand_together_whenever_they_were_measured() -> None:
    results = Results()
    for scenario, quantity in (("a", "one"), ("b", "two"), ("a", "three")):
        results.add(scenario, "load", quantity, "", 1)
    lines = [line.split() for line in table(results, titles={}, paint=PLAIN).splitlines()[1:]]
    assert [line[min(1, len(line) - 1)] for line in lines if line] == [
        "a",
        "one",
        "three",
        "b",
        "two",
    ]


@given(books())
def test_every_figure_has_a_row_and_no_line_is_too_long(results: Results) -> None:
    lines = table(results, titles={}, paint=PLAIN).splitlines()
    assert max(map(len, lines)) <= WIDTH
    rows = [line for line in lines if " – " in line]
    scenarios = [figure.scenario for figure in results.figures.values()]
    figures = sorted(results.figures.values(), key=lambda figure: scenarios.index(figure.scenario))
    verdicts = {True: "  ok", False: "  MISSED", None: ""}
    assert len(rows) == len(figures)
    for row, figure in zip(rows, figures, strict=True):
        assert number(figure.median) in row
        assert row.endswith(verdicts[figure.met])


# -- JSON ------------------------------------------------------------------------------------------


def test_the_json_has_every_sample_after_the_description_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(str(path), a_run(), {"rounds": 3, "unit": "µs"})
    text = path.read_text("utf-8")
    told = json.loads(text)
    assert list(told) == ["about", "figures", "spreads"]
    assert told["about"] == {"rounds": 3, "unit": "µs"}
    assert told["figures"][0]["samples"] == [9.414, 9.2, 9.9]
    assert text.startswith('{\n  "about": {\n    "rounds": 3,\n    "unit": "µs"\n')


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "such.json")
    with pytest.raises(UsageError) as raised:
        write_json(path, Results(), {})
    assert str(raised.value) == f"{path}: cannot be written: No such file or directory"
