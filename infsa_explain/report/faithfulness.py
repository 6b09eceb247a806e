"""Infidelity and sensitivity: rows become tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from infsa_metrics import MeanInterval, bootstrap_mean

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

__all__ = ["FaithfulnessSummary", "summarise_faithfulness"]


@dataclass(frozen=True)
class FaithfulnessSummary:
    """One method on one model; lower is better.

    Attributes:
        over: control → :class:`Difference` to that control, negative where the method is better;
            empty for the controls.
    """

    model: str
    method: str
    value: MeanInterval
    over: dict[str, Difference]
    seeds: Seeds


def summarise_faithfulness(rows: Sequence[Row], field: str) -> list[FaithfulnessSummary]:
    """Summaries of every (model, method) of ``"infidelity"`` or ``"sensitivity"``."""
    values = {
        model: {
            method: per_image(
                (row for row in own if row["method"] == method),
                unique(own, "image"),
                itemgetter(field),
            )
            for method in unique(own, "method")
        }
        for model, own in by_model(rows).items()
    }
    over = differences_to_controls(values)
    return [
        FaithfulnessSummary(
            model,
            method,
            bootstrap_mean(own),
            over.get((model, method), {}),
            seeds(
                (row for row in rows if (row["model"], row["method"]) == (model, method)),
                itemgetter(field),
            ),
        )
        for model, methods in values.items()
        for method, own in methods.items()
    ]


def _tables(summaries: Sequence[FaithfulnessSummary], field: str) -> list[Table]:
    over = (f"over {control} [95%]" for control in CONTROLS)
    headings = ("model", "method", f"{field} ↓ [95%]", *over, "n")
    cells = [
        (
            s.model,
            s.method,
            interval_cell(s.value, 1, ".4f"),
            *(difference_cell(s.over.get(control), 1, "+.4f") for control in CONTROLS),
            count_cell(s.value, s.seeds, 1, ".4f"),
        )
        for s in summaries
    ]
    return [Table(field, headings, cells, caution(s.value for s in summaries))]


for _field in ("infidelity", "sensitivity"):
    section(_field, partial(summarise_faithfulness, field=_field), partial(_tables, field=_field))
