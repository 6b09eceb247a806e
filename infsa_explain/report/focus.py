"""How concentrated maps are, and how alike tokens grow with depth: rows become tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean
from numpy.typing import NDArray

from ..evaluate.rows import Row
from .sections import section
from .tables import (
    Difference,
    Table,
    by_model,
    caution,
    difference_cell,
    differences,
    interval_cell,
    per_image,
    unique,
)

__all__ = ["FocusSummary", "SimilaritySummary", "summarise_focus", "summarise_similarity"]

MEASURES = ("entropy", "gini", "effective_patches")
#: Whose maps another's are compared with: what the same model sees before it has learnt anything.
CONTROL = "untrained-visits"


@dataclass(frozen=True)
class FocusSummary:
    """One method on one model.

    Attributes:
        measures: measure → mean and interval; see :class:`infsa_explain.evaluate.Focus`.
        over: difference of the Gini index to that of ``untrained-visits``, positive where the
            method's maps are sharper; None for that control, or without it.
    """

    model: str
    method: str
    measures: dict[str, MeanInterval]
    over: Difference | None


@dataclass(frozen=True)
class SimilaritySummary:
    """Mean cosine similarity between the tokens that leave one block; the lower, the less alike."""

    model: str
    layer: int
    similarity: MeanInterval
    untrained: MeanInterval


def summarise_focus(rows: Sequence[Row]) -> list[FocusSummary]:
    """Summaries of every (model, method), in the order in which they first appear."""
    values: dict[tuple[str, str], dict[str, NDArray[np.float64]]] = {}
    for model, own in by_model(row for row in rows if "method" in row).items():
        images = unique(own, "image")
        for method in unique(own, "method"):
            of_method = [row for row in own if row["method"] == method]
            values[model, method] = {
                m: per_image(of_method, images, itemgetter(m)) for m in MEASURES
            }
    over = differences(
        {
            (model, method): (own["gini"], values[model, CONTROL]["gini"])
            for (model, method), own in values.items()
            if method != CONTROL and (model, CONTROL) in values
        }
    )
    return [
        FocusSummary(*key, {m: bootstrap_mean(value) for m, value in own.items()}, over.get(key))
        for key, own in values.items()
    ]


def summarise_similarity(rows: Sequence[Row]) -> list[SimilaritySummary]:
    """Summaries of every (model, layer)."""

    def mean(own: Sequence[Row], name: str, layer: int) -> MeanInterval:
        return bootstrap_mean(per_image(own, unique(own, "image"), lambda row: row[name][layer]))

    return [
        SimilaritySummary(
            model, layer, mean(own, "similarity", layer), mean(own, "untrained_similarity", layer)
        )
        for model, own in by_model(row for row in rows if "similarity" in row).items()
        for layer in range(len(own[0]["similarity"]))
    ]


HEADINGS = (
    "model",
    "method",
    "Gini ↑ [95%]",
    f"over {CONTROL} [95%]",
    "entropy ↓ [95%]",
    "effective patches ↓ [95%]",
    "n",
)
SIMILARITY_HEADINGS = ("model", "block", "token similarity [95%]", "untrained [95%]")


def _summarise(rows: Sequence[Row]) -> dict[str, Sequence[FocusSummary | SimilaritySummary]]:
    return {"maps": summarise_focus(rows), "tokens": summarise_similarity(rows)}


def _tables(summaries: dict[str, Any]) -> list[Table]:
    maps, tokens = summaries["maps"], summaries["tokens"]
    cells = [
        (
            s.model,
            s.method,
            interval_cell(s.measures["gini"]),
            difference_cell(s.over),
            interval_cell(s.measures["entropy"]),
            interval_cell(s.measures["effective_patches"]),
            f"{s.measures['gini'].n}",
        )
        for s in maps
    ]
    by_depth = [
        (
            s.model,
            str(s.layer),
            interval_cell(s.similarity, 1, ".3f"),
            interval_cell(s.untrained, 1, ".3f"),
        )
        for s in tokens
    ]
    note = caution(s.measures["gini"] for s in maps)
    return [
        Table("how sharp maps are, right or wrong; percent", HEADINGS, cells, note),
        Table("how alike tokens are, by depth", SIMILARITY_HEADINGS, by_depth),
    ]


section("focus", _summarise, _tables)
