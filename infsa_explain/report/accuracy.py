"""Classification: rows become a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infsa_metrics import MeanInterval, bootstrap_mean

from ..evaluate.runs import Row
from .tables import by_model, caution, interval_cell, markdown

__all__ = [
    "ACCURACY_HEADINGS",
    "AccuracySummary",
    "accuracy_table",
    "summarise_accuracy",
    "write_accuracy",
]


@dataclass(frozen=True)
class AccuracySummary:
    """One model.

    Attributes:
        top1, top5: share of images whose label is the first, or among the first five.
        chance: 1 / C, the accuracy of a guess.
    """

    model: str
    top1: MeanInterval
    top5: MeanInterval
    chance: float


def summarise_accuracy(rows: Sequence[Row]) -> list[AccuracySummary]:
    """Summaries of every model, in the order in which they first appear."""
    summaries = []
    for model, own in by_model(rows).items():
        top1, top5 = (bootstrap_mean([float(row["rank"] < k) for row in own]) for k in (1, 5))
        summaries.append(AccuracySummary(model, top1, top5, chance=1 / own[0]["classes"]))
    return summaries


ACCURACY_HEADINGS = ("model", "top-1 ↑ [95%]", "top-5 ↑ [95%]", "chance", "n")


def accuracy_table(summaries: Sequence[AccuracySummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``ACCURACY_HEADINGS``; in percent."""
    return [
        (
            s.model,
            interval_cell(s.top1),
            interval_cell(s.top5),
            f"{100 * s.chance:.1f}",
            f"{s.top1.n}",
        )
        for s in summaries
    ]


def write_accuracy(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``summary.json`` and ``summary.md`` of a run."""
    summaries = summarise_accuracy(rows)
    payload = [asdict(summary) for summary in summaries]
    (folder / "summary.json").write_text(json.dumps(payload, indent=2) + "\n")
    (folder / "summary.md").write_text(
        markdown(ACCURACY_HEADINGS, accuracy_table(summaries)) + caution(s.top1 for s in summaries)
    )
