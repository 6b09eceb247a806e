"""The charts of the page as numbers: where lines, points, bars and cells go.

A chart knows its geometry, the template its marks. Lengths of line charts are in units of their
own frame, those of forest plots in percent of their width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from infsa_metrics import MeanInterval
from numpy.typing import NDArray

from ..files import replacing

__all__ = [
    "PALETTE",
    "Forest",
    "ForestRow",
    "Heat",
    "HeatCell",
    "Line",
    "LineChart",
    "markers",
    "save_figure",
]

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP = 46, 448, 12
#: Points of a line that have a marker, about.
MARKED = 6
#: Okabe and Ito's palette, told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def markers(index: int) -> str:
    """matplotlib's marker of the index-th line: beyond the palette, colours come again, marked."""
    return ("", "o", "s", "^", "v", "D")[index // len(PALETTE) % 6]


def save_figure(figure: Any, folder: Path, name: str) -> None:
    """Write a matplotlib figure as PNG and SVG."""
    for ending in ("png", "svg"):
        with replacing(folder / f"{name}.{ending}") as temporary:
            figure.savefig(temporary, dpi=150)


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
