from __future__ import annotations

from collections.abc import Sequence
from math import inf, log10, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.axis import Axis
from pipeline.bench.labels import text_width

TIMES = st.floats() | st.floats(0.1, 100) | st.sampled_from([0.0, -1.0, 3.0, inf, -inf, nan])


@given(st.lists(TIMES, max_size=20))
def test_every_value_has_a_place_on_its_axis(values: list[float]) -> None:
    axis = Axis.around(values)
    assert all(0 < axis.share(value) < 1 for value in values if value == value)  # noqa: PLR0124
    assert all(0 <= share <= 1 for share, _ in axis.ticks(460, text_width))
    assert axis.ticks(460, text_width)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.1, 100], "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100"),
        ([1, 10], "1 2 5 10"),
        ([20, 20], "18 20 22 24"),
        ([20.1, 20.4], "18 20 22 24"),
        ([0.5, 1.2], "0.6 0.8 1 1.2"),
        ([0.001, 100_000], "0.0001 0.01 1 100 10,000"),
        ([], "0.9 1 1.1 1.2"),
        ([0, -1], "0.9 1 1.1 1.2"),
    ],
    ids=str,
)
def test_ticks_are_at_steps_of_one_two_and_five(values: Sequence[float], ticks: str) -> None:
    assert " ".join(label for _, label in Axis.around(values).ticks(460, text_width)) == ticks


def test_a_tick_is_where_its_value_is() -> None:
    axis = Axis.around([1, 100])
    for share, label in axis.ticks(460, text_width):
        at = axis.low + share * (axis.high - axis.low)
        assert at == pytest.approx(log10(float(label)))
    assert axis.share(10) == pytest.approx((axis.share(1) + axis.share(100)) / 2)


def test_what_a_logarithm_cannot_show_is_at_the_edge_of_what_it_can() -> None:
    axis = Axis.around([0, -3, 0.5, 40, inf])
    assert axis.share(0) == axis.share(-3) == axis.share(0.5)
    assert axis.share(inf) == axis.share(40)
