"""Which charts a run has: curves of deletion, of precision, of sanity; boxes, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from ..evaluate.localization import RECALLS
from ..evaluate.rows import Row
from .alignment import PUBLISHED_COSINE, AlignmentSummary
from .charts import Forest, ForestRow, Heat, HeatCell, Line, LineChart
from .localization import BoxSummary
from .sanity import SanitySummary
from .tables import by_model, unique

__all__ = [
    "alignment_forests",
    "box_forests",
    "deletion_charts",
    "heat_maps",
    "precision_recall_charts",
    "sanity_charts",
]

#: Points of a curve that are drawn, at most.
POINTS = 100
#: Resamples of the band around a curve.
RESAMPLES = 1000


def deletion_charts(rows: Sequence[Row]) -> list[LineChart]:
    """Mean curves of every model, most relevant first and least relevant first.

    Around each mean is the pointwise 95% percentile bootstrap interval over images.
    """
    return [_deletion_chart(model, own) for model, own in by_model(rows).items()]


def _deletion_chart(model: str, rows: Sequence[Row]) -> LineChart:
    fractions = np.array(rows[0]["fractions"])
    shown = np.unique(np.linspace(0, len(fractions) - 1, POINTS).round().astype(int))
    lines = []
    for method, order in product(unique(rows, "method"), ("morf", "lerf")):
        images: dict[str, list[list[float]]] = {}
        for row in rows:
            if (row["method"], row["order"]) == (method, order):
                images.setdefault(row["image"], []).append(row["probabilities"])
        curves = np.array([np.mean(own, axis=0) for own in images.values()])[:, shown]
        lines.append(Line(method, order, curves.mean(0), *_band(curves)))
    return LineChart(
        title=model,
        lines=lines,
        x=fractions[shown],
        at=[f"{fraction:.1%} removed" for fraction in fractions[shown]],
        x_ticks=[(x / 100, str(x)) for x in (0, 20, 40, 60, 80, 100)],
        slanted=False,
        y_ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        x_label="patches removed (%)",
        y_label="probability of the class",
    )


def _band(curves: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high ends, (S,) each, of the means of curves (n, S); NaN for a single one."""
    n = len(curves)
    if n < 2:
        return np.full(curves.shape[1], np.nan), np.full(curves.shape[1], np.nan)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.percentile(draws @ curves / n, (2.5, 97.5), axis=0)
    return low, high


def sanity_charts(summaries: Sequence[SanitySummary]) -> list[LineChart]:
    """Spearman's ρ to the trained map as weights become random from the head down."""
    charts = []
    for model in dict.fromkeys(s.model for s in summaries):
        own = [s for s in summaries if s.model == model]
        stages = ["trained", *own[0].stages]
        lines = [
            Line(
                s.method,
                "",
                *(
                    np.array([1.0, *(getattr(value, end) for value in s.spearman)])
                    for end in ("mean", "low", "high")
                ),
            )
            for s in own
        ]
        lowest = min(0.0, *(np.nanmin([*line.mean, *line.low]) for line in lines))
        bottom = int(np.floor(lowest / 0.2 - 1e-9)) if lowest < 0 else 0
        every = max(1, round(len(stages) / 13))
        charts.append(
            LineChart(
                title=model,
                lines=lines,
                x=np.arange(len(stages), dtype=np.float64),
                at=["trained", *(f"random down to {stage}" for stage in own[0].stages)],
                x_ticks=[(i, stages[i]) for i in range(0, len(stages), every)],
                slanted=True,
                y_ticks=[round(0.2 * step, 1) for step in range(bottom, 6)],
                x_label="made random, from the head down",
                y_label="Spearman's ρ to the trained map",
            )
        )
    return charts


def precision_recall_charts(rows: Sequence[Row]) -> list[LineChart]:
    """Mean precision at every recall, a chart a model, with a pointwise interval over images."""
    return [
        _precision_recall_chart(model, [row for row in own if row.get("precision")])
        for model, own in by_model(rows).items()
        if any(row.get("precision") for row in own)
    ]


def _precision_recall_chart(model: str, rows: Sequence[Row]) -> LineChart:
    lines = []
    for method in unique(rows, "method"):
        images: dict[str, list[list[float]]] = {}
        for row in rows:
            if row["method"] == method:
                images.setdefault(row["image"], []).append(row["precision"])
        curves = np.array([np.mean(own, axis=0) for own in images.values()])
        lines.append(Line(method, "", curves.mean(0), *_band(curves)))
    return LineChart(
        title=model,
        lines=lines,
        x=np.array(RECALLS),
        at=[f"recall {recall:.0%}" for recall in RECALLS],
        x_ticks=[(x / 100, str(x)) for x in (20, 40, 60, 80, 100)],
        slanted=False,
        y_ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        x_label="recall: share of the box that is found (%)",
        y_label="precision",
    )


def box_forests(summaries: Sequence[BoxSummary]) -> list[Forest]:
    """Average precision of every method beside the prevalence, which a constant map scores."""
    forests = []
    for model in dict.fromkeys(s.model for s in summaries):
        own = [s for s in summaries if s.model == model]
        share = own[0].measures["prevalence"].mean
        rows = [ForestRow(s.method, s.measures["ap"]) for s in own if s.measures["ap"].n]
        references = [] if np.isnan(share) else [(share, f"prevalence {100 * share:.1f}")]
        forests.append(Forest(model, "PR-AUC (%)", rows, 100, ".1f", references))
    return forests


def alignment_forests(summaries: Sequence[AlignmentSummary]) -> list[Forest]:
    """Cosine with the Perron vector of the linear weights, and of what costs less."""
    return [
        Forest(
            model,
            "cosine with the Perron vector",
            [ForestRow(s.vector, s.cosine) for s in summaries if s.model == model and s.cosine.n],
            1,
            ".3f",
            [(PUBLISHED_COSINE, f"published {PUBLISHED_COSINE}")],
        )
        for model in dict.fromkeys(s.model for s in summaries)
    ]


def heat_maps(rows: Sequence[Row]) -> list[Heat]:
    """Cosine of the linear weights and the Perron vector, layer by head, a chart a model."""
    colours = colormaps["viridis"]
    scale = [to_hex(colours(x)) for x in np.linspace(0, 1, 9)]
    heats = []
    for model, own in by_model(rows).items():
        groups: dict[tuple[int, int], list[Row]] = {}
        for row in own:
            groups.setdefault((row["layer"], row["head"]), []).append(row)
        grid: dict[int, list[HeatCell]] = {}
        for (layer, head), group in sorted(groups.items()):
            known = [r["cosine"]["linear"] for r in group if r["cosine"]["linear"] is not None]
            mean = float(np.mean(known)) if known else np.nan
            dead = float(np.mean([row["dead"] for row in group]))
            grid.setdefault(layer, []).append(
                HeatCell(
                    mean,
                    "transparent" if np.isnan(mean) else to_hex(colours(mean)),
                    "inherit" if np.isnan(mean) else "#000" if mean > 0.55 else "#fff",
                    f"layer {layer}, head {head}: "
                    + ("no cosine" if np.isnan(mean) else f"cosine {mean:.3f}")
                    + (f"; dead in {dead:.1%} of images" if dead else ""),
                )
            )
        heats.append(Heat(model, grid, scale))
    return heats
