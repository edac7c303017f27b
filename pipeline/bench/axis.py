"""A logarithmic axis that fits the values, with ticks at 1-2-5 steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

from attrs import frozen

from pipeline.bench.report import number

LEAST: Final = 1e-9
MOST: Final = 1e12
"""No value in any used unit is outside these, and ticks would not be readable."""
_NARROWEST: Final = log10(1.5)
"""Equal values still need an axis, and noise must not fill one."""
_NARROW: Final = 0.7
"""Decades below which steps of 1-2-5 decades leave too few ticks."""
_BEFORE, _AFTER = 0.2, 0.04
"""The margins, as shares of what the values span; the label of the first curve stands in one."""


@frozen
class Axis:
    """From `low` to `high`, which are powers of ten; contains every value."""

    low: float
    high: float
    least: float
    """The smallest value that is shown at its own position; smaller ones share it."""
    most: float

    @classmethod
    def around(cls, values: Iterable[float]) -> Axis:
        """An axis that contains all positive values."""
        shown = [value for value in values if LEAST <= value <= MOST] or [1.0]
        least, most = min(shown), max(shown)
        span = log10(most) - log10(least)
        low, high = log10(least) - span * _BEFORE, log10(most) + span * _AFTER
        missing = max(0.0, _NARROWEST - (high - low)) / 2
        return cls(low - missing, high + missing, least, most)

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        return (log10(min(max(value, self.least), self.most)) - self.low) / (self.high - self.low)

    def ticks(self, width: float, text_width: Callable[[str], float]) -> list[tuple[float, str]]:
        """The most ticks whose labels do not touch: how far along each lies, and its label."""
        for values in self._choices():
            ticks = [
                ((log10(value) - self.low) / (self.high - self.low), number(value))
                for value in values
            ]
            if _apart(ticks, width, text_width):
                return ticks
        return []

    def _choices(self) -> Iterator[Sequence[float]]:
        if self.high - self.low < _NARROW:
            for parts in (6, 4, 2):
                yield self._even(parts)
        yield self._decades((1, 2, 5), 1)
        for stride in range(1, 22):
            yield self._decades((1,), stride)

    def _decades(self, steps: Sequence[int], stride: int) -> list[float]:
        """1-2-5 steps of every so many decades."""
        exponents = range(floor(self.low / stride) * stride, ceil(self.high) + 1, stride)
        values = [step * 10.0**exponent for exponent in exponents for step in steps]
        return [value for value in values if self.low <= log10(value) <= self.high]

    def _even(self, parts: int) -> list[float]:
        """Multiples of 1, 2 or 5 of some decade: about so many."""
        low, high = 10**self.low, 10**self.high
        power = 10.0 ** floor(log10((high - low) / parts))
        step = next(m for m in (1, 2, 5, 10) if m * power * parts >= high - low) * power
        return [n * step for n in range(ceil(low / step), floor(high / step) + 1)]


def _apart(
    ticks: Sequence[tuple[float, str]], width: float, text_width: Callable[[str], float]
) -> bool:
    return all(
        (right - left) * width > (text_width(before) + text_width(after)) / 2 + 6
        for (left, before), (right, after) in pairwise(ticks)
    )
