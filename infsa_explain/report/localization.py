"""Maps against boxes: rows become a table.

``random`` and ``centre`` stand in every table: a fixed blob scores high wherever objects lie in the
middle of their pictures, and prevalence is what a constant map scores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean
from numpy.typing import NDArray

from ..evaluate.runs import Row
from .tables import (
    CONTROLS,
    Difference,
    by_model,
    caution,
    difference_cell,
    differences_to_controls,
    interval_cell,
    markdown,
    unique,
)

__all__ = ["BOX_HEADINGS", "BoxSummary", "box_table", "summarise_boxes", "write_boxes"]

#: Measures of every map, as :func:`infsa_explain.evaluate.evaluate_boxes` names them.
MEASURES = (
    "ap", "roc_auc", "pointing", "mass", "rank", "iou_mean", "iou_best",
    "effective_patches", "prevalence",
)  # fmt: skip


@dataclass(frozen=True)
class BoxSummary:
    """One method on one model, means over the images that have a box.

    Attributes:
        measures: measure → mean and interval; see :func:`infsa_explain.evaluate.evaluate_boxes`.
        over: control → :class:`Difference` of average precision to that control; empty for the
            controls themselves.
        skipped: images without a pixel inside a box, or without one outside.
    """

    model: str
    method: str
    measures: dict[str, MeanInterval]
    over: dict[str, Difference]
    skipped: int


def summarise_boxes(rows: Sequence[Row]) -> list[BoxSummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: as :func:`infsa_explain.evaluate.evaluate_boxes` gives them.
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
            summaries.append(
                BoxSummary(model, method, measures, over.get((model, method), {}), skipped)
            )
    return summaries


def _values(rows: Sequence[Row], method: str, measure: str) -> NDArray[np.float64]:
    """One measure per image, in the order in which images first appear; NaN where there is none."""
    found = {row["image"]: row[measure] for row in rows if row["method"] == method}
    values = [found.get(image) for image in unique(rows, "image")]
    return np.array([np.nan if value is None else value for value in values])


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
            f"{s.measures['ap'].n}" + (f" ({s.skipped} skipped)" if s.skipped else ""),
        )
        for s in summaries
    ]


def write_boxes(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``summary.json`` and ``summary.md`` of a run."""
    summaries = summarise_boxes(rows)
    payload = [asdict(summary) for summary in summaries]
    (folder / "summary.json").write_text(json.dumps(payload, indent=2) + "\n")
    (folder / "summary.md").write_text(
        markdown(BOX_HEADINGS, box_table(summaries)) + caution(s.measures["ap"] for s in summaries)
    )
