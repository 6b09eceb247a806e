"""What every table shares: per-image values, intervals and corrected differences, Markdown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from infsa_metrics import MeanInterval, holm, paired_test
from numpy.typing import NDArray

from ..methods import UNTRAINED
from .rows import Row

__all__ = [
    "CONTROLS",
    "UNTRAINED",
    "Difference",
    "Seeds",
    "Table",
    "by_method",
    "by_model",
    "caution",
    "count_cell",
    "difference_cell",
    "differences",
    "differences_to_controls",
    "interval_cell",
    "is_control",
    "markdown",
    "per_image",
    "pointwise_band",
    "seeds",
    "unique",
]

Key = TypeVar("Key", bound=Hashable)
#: Maps that look at nothing, which every method is compared with.
CONTROLS = ("random", "centre")
#: Resamples of the band around a curve.
RESAMPLES = 1000
#: Below so many images a bootstrap interval covers the mean too seldom.
MINIMUM_IMAGES = 30


def is_control(method: str) -> bool:
    """Whether a map owes nothing to what the model has learned.

    >>> [is_control(name) for name in ("visits", "centre", "untrained-visits")]
    [False, True, True]
    """
    return method in CONTROLS or method.startswith(UNTRAINED)


@dataclass(frozen=True)
class Difference:
    """A measure of one method minus that of another on the same images.

    Attributes:
        interval: mean difference and its interval.
        p_value: two-sided, sign-flip permutation, Holm-corrected over all tests of the table.
        effect_size: Cohen's d_z, the mean difference in standard deviations of the differences.
    """

    interval: MeanInterval
    p_value: float
    effect_size: float


@dataclass(frozen=True)
class Seeds:
    """Several checkpoints of one model, averaged image by image.

    Attributes:
        count: how many.
        spread: standard deviation of their means; NaN for a single one.
    """

    count: int
    spread: float


@dataclass(frozen=True)
class Table:
    """Cells to be shown.

    Attributes:
        title: a line above it.
        headings: one a column.
        cells: a tuple a row.
        note: a sentence below it, or nothing.
    """

    title: str
    headings: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]
    note: str = ""

    def markdown(self) -> str:
        """Title, table and note in Markdown."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"**{self.title}**\n\n{markdown(self.headings, self.cells)}{note}"


def differences(
    pairs: Mapping[Key, tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> dict[Key, Difference]:
    """Paired tests of a − b for every pair (a, b) of a table, corrected together.

    Args:
        pairs: key → two arrays (n,) of per-image values, of the same images in the same order.
    """
    tests = {key: paired_test(a, b) for key, (a, b) in pairs.items()}
    corrected = holm([test.p_value for test in tests.values()])
    return {
        key: Difference(
            MeanInterval(test.difference, test.low, test.high, test.n, test.excluded),
            float(p),
            test.effect_size,
        )
        for (key, test), p in zip(tests.items(), corrected, strict=True)
    }


def differences_to_controls(
    values: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> dict[tuple[str, str], dict[str, Difference]]:
    """(model, method) → control → difference, for every method that is no control.

    Args:
        values: model → method → a measure per image (n,), of the same images in the same order.
    """
    pairs = {
        (model, method, control): (own[method], own[control])
        for model, own in values.items()
        for method in own
        if method not in CONTROLS
        for control in CONTROLS
        if control in own
    }
    found: dict[tuple[str, str], dict[str, Difference]] = {}
    for (model, method, control), difference in differences(pairs).items():
        found.setdefault((model, method), {})[control] = difference
    return found


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of every model, in the order in which they first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["model"], []).append(row)
    return groups


def by_method(rows: Sequence[Row]) -> dict[str, tuple[list[str], dict[str, list[Row]]]]:
    """model → (its images, method → rows), each in the order in which it first appears."""
    groups: dict[str, tuple[list[str], dict[str, list[Row]]]] = {}
    for model, of_model in by_model(rows).items():
        methods: dict[str, list[Row]] = {}
        for row in of_model:
            methods.setdefault(row["method"], []).append(row)
        groups[model] = unique(of_model, "image"), methods
    return groups


def per_image(
    rows: Iterable[Row], images: Sequence[str], field: Callable[[Row], float | None]
) -> NDArray[np.float64]:
    """A field image by image, (n,), in the order of ``images``: the mean of an image's rows.

    An image has several rows where several checkpoints of a model were measured. NaN where there
    is no row, or one is None.
    """
    values: dict[str, list[float]] = {image: [] for image in images}
    for row in rows:
        value = field(row)
        values[row["image"]].append(np.nan if value is None else value)
    return np.array([np.mean(own) if own else np.nan for own in values.values()], dtype=np.float64)


def seeds(rows: Iterable[Row], field: Callable[[Row], float | None]) -> Seeds:
    """How much a mean differs between the checkpoints that rows are of."""
    values: dict[str, list[float]] = {}
    for row in rows:
        value = field(row)
        values.setdefault(row["checkpoint"], [])
        if value is not None:
            values[row["checkpoint"]].append(value)
    means = [float(np.mean(own)) if own else np.nan for own in values.values()]
    return Seeds(len(means), float(np.std(means, ddof=1)) if len(means) > 1 else np.nan)


def unique(rows: Iterable[Row], field: str) -> list[str]:
    """The values of a field, in the order in which they first appear."""
    return list(dict.fromkeys(row[field] for row in rows))


def interval_cell(value: MeanInterval, scale: float = 100, spec: str = ".1f") -> str:
    """``mean [low, high]``, in percent unless ``scale`` says otherwise; [—] for one image."""
    mean, low, high = (format(scale * x, spec) for x in (value.mean, value.low, value.high))
    return f"{mean} [—]" if value.n < 2 else f"{mean} [{low}, {high}]"


def difference_cell(difference: Difference | None, scale: float = 100, spec: str = "+.1f") -> str:
    """``mean [low, high] p``, or a dash where there is nothing to compare with."""
    if difference is None:
        return "—"
    cell = interval_cell(difference.interval, scale, spec)
    if difference.interval.n < 2:
        return cell
    p = difference.p_value
    p_cell = "<0.001" if p < 0.001 else f"{p:.3f}"
    return f"{cell} p {p_cell} d {difference.effect_size:.1f}"


def count_cell(value: MeanInterval, of: Seeds, scale: float = 100, spec: str = ".1f") -> str:
    """Number of images, those left out, and where there are several checkpoints their spread."""
    excluded = f" ({value.excluded} excluded)" if value.excluded else ""
    spread = f" × {of.count} seeds, ± {format(scale * of.spread, spec)}" if of.count > 1 else ""
    return f"{value.n}{excluded}{spread}"


def caution(intervals: Iterable[MeanInterval]) -> str:
    """A sentence where some mean has too few images for its interval, otherwise nothing."""
    fewest = min((interval.n for interval in intervals), default=MINIMUM_IMAGES)
    if fewest >= MINIMUM_IMAGES:
        return ""
    return (
        f"caution: {fewest} images; with fewer than {MINIMUM_IMAGES}, bootstrap intervals are too "
        "narrow and tests say little"
    )


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def pointwise_band(curves: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high ends, (S,) each, of the means of curves (n, S); NaN for a single one."""
    n = len(curves)
    if n < 2:
        return np.full(curves.shape[1], np.nan), np.full(curves.shape[1], np.nan)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.percentile(draws @ curves / n, (2.5, 97.5), axis=0)
    return low, high
