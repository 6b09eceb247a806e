"""Classification: rows become a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infsa_metrics import MeanInterval, bootstrap_mean

from ..evaluate.rows import Row
from .sections import section
from .tables import (
    Seeds,
    Table,
    by_model,
    caution,
    count_cell,
    interval_cell,
    per_image,
    seeds,
    unique,
)

__all__ = ["ACCURACY_HEADINGS", "AccuracySummary", "accuracy_table", "summarise_accuracy"]


@dataclass(frozen=True)
class AccuracySummary:
    """One model.

    Attributes:
        top1, top5: share of images whose label is the first, or among the first five.
        chance: 1 / C, the accuracy of a guess.
        seeds: of top-1.
    """

    model: str
    top1: MeanInterval
    top5: MeanInterval
    chance: float
    seeds: Seeds


def summarise_accuracy(rows: Sequence[Row]) -> list[AccuracySummary]:
    """Summaries of every model, in the order in which they first appear."""
    summaries = []
    for model, own in by_model(rows).items():
        images = unique(own, "image")
        top1, top5 = (bootstrap_mean(per_image(own, images, _within(k))) for k in (1, 5))
        chance = 1 / own[0]["classes"]
        summaries.append(AccuracySummary(model, top1, top5, chance, seeds(own, _within(1))))
    return summaries


def _within(k: int) -> Callable[[Row], float]:
    """1 for an image whose label is among the first k, else 0."""
    return lambda row: float(row["rank"] < k)


ACCURACY_HEADINGS = ("model", "top-1 ↑ [95%]", "top-5 ↑ [95%]", "chance", "n")


def accuracy_table(summaries: Sequence[AccuracySummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``ACCURACY_HEADINGS``; in percent."""
    return [
        (
            s.model,
            interval_cell(s.top1),
            interval_cell(s.top5),
            f"{100 * s.chance:.1f}",
            count_cell(s.top1, s.seeds),
        )
        for s in summaries
    ]


def _tables(summaries: Sequence[AccuracySummary]) -> list[Table]:
    note = caution(s.top1 for s in summaries)
    return [Table("accuracy; percent", ACCURACY_HEADINGS, accuracy_table(summaries), note)]


section("accuracy", summarise_accuracy, _tables)
