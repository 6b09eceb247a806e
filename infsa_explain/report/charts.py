"""The charts of the page as numbers: where lines, points, bars and cells go.

A chart knows its geometry, the template its marks. Lengths of line charts are in units of their
own frame, those of forest plots in percent of their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from infsa_metrics import MeanInterval
from numpy.typing import NDArray

from ..evaluate.batches import UNTRAINED
from .tables import PALETTE

__all__ = ["Forest", "ForestRow", "Heat", "HeatCell", "Line", "LineChart", "Style", "styles"]

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP = 46, 448, 12
#: Points of a line that have a marker, about.
MARKED = 6
#: Path of each marker around (0, 0); beyond the palette, colours come again with the next.
MARKERS = (
    "",
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4L4 3h-8z",
    "M0 4L4 -3h-8z",
    "M0 -4L4 0L0 4L-4 0z",
)


class Style(NamedTuple):
    """How a name looks everywhere on the page: a class of the style sheet, and a marker's path."""

    colour: str
    marker: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Colours of the palette in the order of the names; controls are grey.

    >>> {name: style.colour for name, style in styles(["visits", "random", "katz"]).items()}
    {'visits': 'c0', 'random': 'grey0', 'katz': 'c1'}
    """
    fixed = {"random": Style("grey0", ""), "centre": Style("grey1", MARKERS[1])}
    found: dict[str, Style] = {}
    coloured = greyed = 0
    for name in dict.fromkeys(names):
        if name in fixed:
            found[name] = fixed[name]
        elif name.startswith(UNTRAINED) or name in ("uniform", "untrained"):
            found[name] = Style("grey2", MARKERS[2 + greyed % 4])
            greyed += 1
        else:
            turn, place = divmod(coloured, len(PALETTE))
            found[name] = Style(f"c{place}", MARKERS[turn % len(MARKERS)])
            coloured += 1
    return found


@dataclass(frozen=True)
class Line:
    """Means with their intervals, one at every x of a chart; NaN where there is none.

    Attributes:
        name: of the method, which decides how it looks.
        order: ``"morf"``, ``"lerf"``, or nothing.
        mean, low, high: (n,).
    """

    name: str
    order: str
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common x.

    Attributes:
        title: a line above.
        lines: what is drawn.
        x: (n,) rising.
        at: what each x is, in words.
        x_ticks: (x, label).
        slanted: whether these labels are, as they are long.
        y_ticks: the first and the last are the ends of the axis.
        x_label, y_label: name the axes.
    """

    title: str
    lines: list[Line]
    x: NDArray[np.float64]
    at: list[str]
    x_ticks: list[tuple[float, str]]
    slanted: bool
    y_ticks: list[float]
    x_label: str
    y_label: str

    width, height, left, right, top = WIDTH, HEIGHT, LEFT, RIGHT, TOP

    @property
    def bottom(self) -> int:
        """Of the plot; what is below it are labels."""
        return HEIGHT - (74 if self.slanted else 44)

    def across(self, x: float) -> float:
        """Place of an x."""
        share = (x - self.x[0]) / (self.x[-1] - self.x[0]) if len(self.x) > 1 else 0.0
        return round(float(LEFT + share * (RIGHT - LEFT)), 1)

    def down(self, y: float) -> float:
        """Place of a y."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return round(float(self.bottom - (y - low) / (high - low) * (self.bottom - TOP)), 1)

    @staticmethod
    def tick(y: float) -> str:
        """A label of the axis."""
        return f"{y:g}".replace("-", "−")

    def path(self, line: Line) -> str:
        """The line, broken where a mean is NaN."""
        steps, pen = [], "M"
        for x, y in zip(self.x, line.mean, strict=True):
            if np.isnan(y):
                pen = "M"
                continue
            steps.append(f"{pen}{self.across(x)} {self.down(y)}")
            pen = "L"
        return "".join(steps)

    def marked(self, line: Line) -> list[tuple[float, float]]:
        """Places of the markers of a line, about evenly along x."""
        even = np.linspace(self.x[0], self.x[-1], MARKED)
        chosen = np.unique(np.abs(self.x[:, None] - even).argmin(0))
        return [
            (self.across(self.x[i]), self.down(line.mean[i]))
            for i in chosen
            if not np.isnan(line.mean[i])
        ]

    def data(self) -> dict[str, Any]:
        """What the page's script needs to find the nearest point, and to say what it is."""
        return {
            "x": [self.across(x) for x in self.x],
            "at": self.at,
            "y": [self.y_ticks[0], self.y_ticks[-1]],
            "top": TOP,
            "bottom": self.bottom,
            "lines": [
                {
                    "name": line.name,
                    "order": line.order,
                    **{key: _numbers(getattr(line, key)) for key in ("mean", "low", "high")},
                }
                for line in self.lines
            ],
        }


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [None if np.isnan(value) else round(float(value), 4) for value in values]


class ForestRow(NamedTuple):
    """A mean with its interval, in the units of the plot."""

    name: str
    value: MeanInterval


@dataclass(frozen=True)
class Forest:
    """Means and intervals below one another, from 0 to 1.

    Attributes:
        title: a line above.
        label: names what is shown.
        rows: what is shown; a mean that is undefined is left out.
        spec: how a mean is written, of ``scale`` times it.
        references: (value, name) of lines to compare with.
    """

    title: str
    label: str
    rows: list[ForestRow]
    scale: float
    spec: str
    references: list[tuple[float, str]]

    def text(self, value: float) -> str:
        """A number as it is written."""
        return format(self.scale * value, self.spec)

    @staticmethod
    def place(value: float) -> str:
        """Of a value, as CSS has it; what is outside lies at the edge."""
        return f"{100 * min(max(value, 0.0), 1.0):.2f}%"


class HeatCell(NamedTuple):
    """A mean over images, NaN where there is none, its colours, and more in words."""

    value: float
    ground: str
    ink: str
    words: str


@dataclass(frozen=True)
class Heat:
    """Layers × heads.

    Attributes:
        title: a line above.
        rows: layer to its heads.
        scale: colours from 0 to 1.
    """

    title: str
    rows: dict[int, list[HeatCell]]
    scale: list[str]
