"""Maps against boxes: rows become a table.

``random`` and ``centre`` stand in every table: a fixed blob scores high wherever objects lie in the
middle of their pictures, and prevalence is what a constant map scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean
from numpy.typing import NDArray

from ..evaluate.rows import Row
from .sections import section
from .tables import (
    CONTROLS,
    Difference,
    Seeds,
    Table,
    by_model,
    caution,
    count_cell,
    difference_cell,
    differences_to_controls,
    interval_cell,
    per_image,
    seeds,
    unique,
)

__all__ = ["BOX_HEADINGS", "BoxSummary", "box_table", "summarise_boxes"]

#: Measures of every map, as :class:`infsa_explain.evaluate.Boxes` names them.
MEASURES = (
    "ap", "roc_auc", "pointing", "mass", "rank", "iou_mean", "iou_best",
    "effective_patches", "prevalence",
)  # fmt: skip


@dataclass(frozen=True)
class BoxSummary:
    """One method on one model, means over the images that have a box.

    Attributes:
        measures: measure → mean and interval; see :class:`infsa_explain.evaluate.Boxes`.
        over: control → :class:`Difference` of average precision to that control; empty for the
            controls themselves.
        skipped: images without a pixel inside a box, or without one outside.
        seeds: of average precision.
    """

    model: str
    method: str
    measures: dict[str, MeanInterval]
    over: dict[str, Difference]
    skipped: int
    seeds: Seeds


def summarise_boxes(rows: Sequence[Row]) -> list[BoxSummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Boxes`.
    """
    groups = by_model(rows)
    over = differences_to_controls(
        {
            model: {method: _values(own, method, "ap") for method in unique(own, "method")}
            for model, own in groups.items()
        }
    )
    summaries = []
    for model, own in groups.items():
        for method in unique(own, "method"):
            skipped = int(np.isnan(_values(own, method, "prevalence")).sum())
            measures = {m: bootstrap_mean(_values(own, method, m)) for m in MEASURES}
            spread = seeds((r for r in own if r["method"] == method), itemgetter("ap"))
            differences = over.get((model, method), {})
            summaries.append(BoxSummary(model, method, measures, differences, skipped, spread))
    return summaries


def _values(rows: Sequence[Row], method: str, measure: str) -> NDArray[np.float64]:
    """One measure per image, in the order in which images first appear; NaN where there is none."""
    own = (row for row in rows if row["method"] == method)
    return per_image(own, unique(rows, "image"), itemgetter(measure))


BOX_HEADINGS = (
    "model",
    "method",
    "PR-AUC ↑ [95%]",
    *(f"over {control} [95%]" for control in CONTROLS),
    "ROC-AUC ↑",
    "pointing ↑",
    "mass ↑",
    "rank ↑",
    "best IoU ↑",
    "effective patches",
    "prevalence",
    "n",
)


def box_table(summaries: Sequence[BoxSummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``BOX_HEADINGS``; in percent."""
    shown = ("roc_auc", "pointing", "mass", "rank", "iou_best", "effective_patches", "prevalence")
    return [
        (
            s.model,
            s.method,
            interval_cell(s.measures["ap"]),
            *(difference_cell(s.over.get(control)) for control in CONTROLS),
            *(f"{100 * s.measures[measure].mean:.1f}" for measure in shown),
            count_cell(s.measures["ap"], s.seeds),
        )
        for s in summaries
    ]


def _tables(summaries: Sequence[BoxSummary]) -> list[Table]:
    note = caution(s.measures["ap"] for s in summaries)
    return [Table("boxes; percent", BOX_HEADINGS, box_table(summaries), note)]


def _fault(summaries: Sequence[BoxSummary]) -> str:
    if any(s.measures["prevalence"].n for s in summaries):
        return ""
    return (
        "no image has a box, in the part that the model sees, that leaves something outside; with "
        "--boxes label the boxes must be of the image's own label"
    )


section("boxes", summarise_boxes, _tables, fault=_fault)
