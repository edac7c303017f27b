"""Results: samples of named quantities, and their medians."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from statistics import median, quantiles
from typing import Any

from attrs import define, field


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile at a share of the values; nan if there are none."""
    if not values:
        return nan
    return sorted(values)[max(0, ceil(len(values) * share) - 1)]


@define
class Figure:
    """One quantity of one scenario: a sample from every round."""

    scenario: str
    """Such as `burst`."""
    load: str
    """The load, such as `16 streams, line by line`."""
    quantity: str
    """Such as `CPU a chunk`."""
    unit: str
    goal: float | None = None
    at_least: bool = False
    """Whether the goal is a lower bound; else it is an upper one."""
    samples: list[float] = field(factory=list[float])

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def middle(self) -> tuple[float, float]:
        """The lower and upper quartile."""
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without one."""
        if self.goal is None:
            return None
        return self.median >= self.goal if self.at_least else self.median <= self.goal


@define
class Spread:
    """The values of one arm, for the picture."""

    scenario: str
    load: str
    arm: str
    unit: str
    values: list[float] = field(factory=list[float])


@define
class Results:
    """All results of a run, in the order of their first samples."""

    judged: bool = True
    """Whether the run is long enough to compare with the goals."""
    figures: dict[tuple[str, str, str], Figure] = field(factory=dict[tuple[str, str, str], Figure])
    spreads: dict[tuple[str, str, str], Spread] = field(factory=dict[tuple[str, str, str], Spread])

    def add(  # noqa: PLR0913
        self,
        scenario: str,
        load: str,
        quantity: str,
        unit: str,
        value: float,
        *,
        goal: float | None = None,
        at_least: bool = False,
    ) -> None:
        """Add one sample."""
        new = Figure(scenario, load, quantity, unit, goal if self.judged else None, at_least)
        self.figures.setdefault((scenario, load, quantity), new).samples.append(value)

    def spread(
        self, scenario: str, load: str, arm: str, unit: str, values: Sequence[float]
    ) -> None:
        """Add the values of an arm in one round."""
        new = Spread(scenario, load, arm, unit)
        self.spreads.setdefault((scenario, load, arm), new).values.extend(values)

    def as_json(self) -> dict[str, Any]:
        """The figures with all their samples, and the spreads as percentiles."""
        shares = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
        return {
            "figures": [
                {
                    "scenario": figure.scenario,
                    "load": figure.load,
                    "quantity": figure.quantity,
                    "unit": figure.unit,
                    "median": figure.median,
                    "middle_half": figure.middle,
                    "samples": figure.samples,
                    "goal": figure.goal,
                    "met": figure.met,
                }
                for figure in self.figures.values()
            ],
            "spreads": [
                {
                    "scenario": spread.scenario,
                    "load": spread.load,
                    "arm": spread.arm,
                    "unit": spread.unit,
                    "count": len(spread.values),
                    "percentiles": {
                        f"p{share * 100:g}": percentile(spread.values, share) for share in shares
                    },
                }
                for spread in self.spreads.values()
            ],
        }
