"""Finds free positions for labels beside their points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from unicodedata import east_asian_width

from attrs import define, field, frozen

SIZE: Final = 12
"""Pixels of a letter's height."""
_WIDE: Final = 0.62
"""The average width of a letter relative to its height, in the widest common fonts."""
_FROM_POINT: Final = 9.0
_STEP: Final = 15.0
_STEPS: Final = 7


def text_width(text: str, size: float = SIZE) -> float:
    """The approximate maximum width of a text; the reader's font is unknown."""
    wide = sum(1.0 if east_asian_width(letter) in "WF" else _WIDE for letter in text)
    return wide * size


def cut(text: str, width: float, size: float = SIZE) -> str:
    """As much of a text as fits."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…"


@frozen
class Box:
    """A rectangle; a line is one without height or width."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: Box) -> bool:
        return (
            self.left <= other.right
            and other.left <= self.right
            and self.top <= other.bottom
            and other.top <= self.bottom
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


@frozen
class Label:
    """A text at its position, and the point that it labels."""

    lines: Sequence[str]
    kind: str
    point: tuple[float, float]
    box: Box

    @property
    def leader(self) -> tuple[float, float] | None:
        """Where a line from the point meets the label; None if they are adjacent."""
        middle = (self.box.top + self.box.bottom) / 2
        if abs(middle - self.point[1]) <= (self.box.bottom - self.box.top) / 2:
            return None
        return (self.box.right + 2 if self.leftwards else self.box.left - 2), middle

    @property
    def leftwards(self) -> bool:
        return self.box.left < self.point[0]

    @property
    def baselines(self) -> Iterator[tuple[float, str]]:
        """The y coordinate and the text of each line."""
        for number, line in enumerate(self.lines, 1):
            yield self.box.top + number * _STEP - 5, line


@define
class Board:
    """The drawing so far; labels that are put on it overlap nothing."""

    frame: Box
    lines: list[Box]
    labels: list[Label] = field(factory=list[Label])
    _taken: list[Box] = field(factory=list[Box])

    def put(
        self, text: Sequence[str], kind: str, point: tuple[float, float], *, leftwards: bool
    ) -> bool:
        """Whether there was room for these lines."""
        width, height = max(map(text_width, text)), len(text) * _STEP - 2
        for box in _places(point, width, height, leftwards=leftwards):
            label = Label(text, kind, point, box)
            leader = list(_along(label))
            if self._free(box) and not any(
                bit.touches(other.box) for bit in leader for other in self.labels
            ):
                self.labels.append(label)
                self._taken += [box, *leader]
                return True
        return False

    def _free(self, box: Box) -> bool:
        return self.frame.holds(box) and not any(
            box.touches(other) for others in (self._taken, self.lines) for other in others
        )


def dots(points: Iterable[tuple[float, float]], radius: float) -> Iterator[Box]:
    """The boxes of dots."""
    for x, y in points:
        yield Box(x - radius, y - radius, x + radius, y + radius)


def stairs(points: Sequence[tuple[float, float]], floor: float) -> Iterator[Box]:
    """The lines of a curve that rises at each of its points, and goes right from there."""
    before = floor
    for (x, y), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
        yield Box(x, y, x, before)
        yield Box(x, y, after, y)
        before = y


def _places(
    point: tuple[float, float], width: float, height: float, *, leftwards: bool
) -> Iterator[Box]:
    """Beside a point, the nearest first; lower right and upper left of a rising curve are free."""
    x, y = point
    for step in range(_STEPS):
        for left in (leftwards, not leftwards):
            for down in (step, -step) if step else (0,):
                middle = y + down * _STEP
                start = x - _FROM_POINT - width if left else x + _FROM_POINT
                yield Box(start, middle - height / 2, start + width, middle + height / 2)


def _along(label: Label) -> Iterator[Box]:
    if label.leader is not None:
        (x, y), (to_x, to_y) = label.point, label.leader
        bits = [(x + (to_x - x) * bit / 20, y + (to_y - y) * bit / 20) for bit in range(20)]
        yield from dots(bits, 1)
