"""What every table shares: rows by model, cells of numbers and intervals, notes, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infsa_metrics import MeanInterval

from ..methods import UNTRAINED
from .rows import Row
from .values import CONTROLS, Difference, Images, Seeds

__all__ = [
    "CONTROLS",
    "FAMILY",
    "UNTRAINED",
    "Table",
    "by_method",
    "by_model",
    "count_cell",
    "difference_cell",
    "interval_cell",
    "is_control",
    "markdown",
    "sampling_note",
    "unique",
]

#: With fewer units, intervals and tests are approximate.
MINIMUM_UNITS = 30
#: What is stated below a table of differences.
FAMILY = (
    "Differences: p and intervals hold together for all maps of a model against one control "
    "(maximum of |t| over resamples)."
)


def is_control(method: str) -> bool:
    """Whether a map owes nothing to what the model has learned.

    >>> [is_control(name) for name in ("visits", "centre", "untrained-visits")]
    [False, True, True]
    """
    return method in CONTROLS or method.startswith(UNTRAINED)


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


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of every model, in the order in which they first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["model"], []).append(row)
    return groups


def by_method(rows: Iterable[Row]) -> dict[str, tuple[Images, dict[str, list[Row]]]]:
    """model → (its images, method → rows), each in the order in which it first appears."""
    groups: dict[str, tuple[Images, dict[str, list[Row]]]] = {}
    for model, of_model in by_model(rows).items():
        methods: dict[str, list[Row]] = {}
        for row in of_model:
            methods.setdefault(row["method"], []).append(row)
        groups[model] = Images.of(of_model), methods
    return groups


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


def sampling_note(intervals: Iterable[MeanInterval]) -> str:
    """What the intervals of a table are over, and a caution where that is too little."""
    intervals = list(intervals)
    if not intervals:
        return ""
    units = min(interval.units for interval in intervals)
    trainings = min(interval.trainings for interval in intervals)
    what = "clusters" if any(i.units < i.n for i in intervals) else "images"
    if what == "clusters":
        sentences = [f"Intervals and tests resample {units} clusters of images, not images."]
    else:
        sentences = []
    if trainings == 1:
        sentences.append("One training: another training may differ by more than an interval.")
    else:
        sentences.append(f"Intervals and tests are over {trainings} trainings and {what}.")
    if units < MINIMUM_UNITS:
        sentences.append(
            f"Caution: {units} {what}. With fewer than {MINIMUM_UNITS} intervals are approximate "
            "and tests say little."
        )
    return " ".join(sentences)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
