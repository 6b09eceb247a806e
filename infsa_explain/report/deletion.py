"""Deletion curves: rows become tables and plots.

Every number is a mean over images with its 95% bootstrap interval. Every method is compared with
the controls ``random`` and ``centre`` on the same model and images, by paired tests that Holm's
method corrects over the whole table.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean
from numpy.typing import NDArray

from ..evaluate.rows import Row
from ..files import replacing
from .sections import save_figure, section
from .tables import (
    CONTROLS,
    PALETTE,
    Difference,
    Seeds,
    Table,
    by_model,
    caution,
    count_cell,
    difference_cell,
    differences_to_controls,
    interval_cell,
    markers,
    per_image,
    seeds,
    unique,
)

__all__ = [
    "MORF_HEADINGS",
    "MorfSummary",
    "mean_curves",
    "morf_table",
    "plot_curves",
    "summarise_morf",
]


@dataclass(frozen=True)
class MorfSummary:
    """One method on one model.

    Attributes:
        steps: points of the curves.
        aoc: MoRF-AOC, 1 − ∫ p_s / p_0; higher is better.
        auc: raw area under the MoRF curve (RISE's deletion score); lower is better.
        lerf_auc: the same, least relevant first; higher is better.
        srg: ``lerf_auc`` − ``auc`` image by image; higher is better.
        over: control → :class:`Difference` of AOC to that control; empty for the controls.
        tied: share of patches whose score equals another's.
        seeds: of AOC.
    """

    model: str
    method: str
    fill: str
    steps: int
    aoc: MeanInterval
    auc: MeanInterval
    lerf_auc: MeanInterval
    srg: MeanInterval
    over: dict[str, Difference]
    tied: float
    seeds: Seeds


def summarise_morf(rows: Sequence[Row]) -> list[MorfSummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Morf`.
    """
    groups = by_model(rows)
    over = differences_to_controls(
        {
            model: {
                method: _values(own, method, "morf", "aoc", unique(own, "image"))
                for method in unique(own, "method")
            }
            for model, own in groups.items()
        }
    )
    summaries = []
    for model, own in groups.items():
        images = unique(own, "image")
        for method in unique(own, "method"):
            auc = _values(own, method, "morf", "auc", images)
            lerf = _values(own, method, "lerf", "auc", images)
            summaries.append(
                MorfSummary(
                    model,
                    method,
                    own[0]["fill"],
                    len(own[0]["fractions"]) - 1,
                    bootstrap_mean(_values(own, method, "morf", "aoc", images)),
                    bootstrap_mean(auc),
                    bootstrap_mean(lerf),
                    bootstrap_mean(lerf - auc),
                    over.get((model, method), {}),
                    float(np.mean(_values(own, method, "morf", "tied", images))),
                    seeds(_rows(own, method, "morf"), itemgetter("aoc")),
                )
            )
    return summaries


def _values(
    rows: Sequence[Row], method: str, order: str, field: str, images: Sequence[str]
) -> NDArray[np.float64]:
    """One field per image, in the order of ``images``; NaN where there is none."""
    return per_image(_rows(rows, method, order), images, itemgetter(field))


def _rows(rows: Sequence[Row], method: str, order: str) -> list[Row]:
    return [row for row in rows if row["method"] == method and row["order"] == order]


MORF_HEADINGS = (
    "model",
    "method",
    "MoRF-AOC ↑ [95%]",
    "over random [95%]",
    "over centre [95%]",
    "AUC ↓",
    "LeRF AUC ↑",
    "SRG ↑ [95%]",
    "tied",
    "n",
)


def morf_table(summaries: Sequence[MorfSummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``MORF_HEADINGS``; areas in percent."""
    return [
        (
            s.model,
            s.method,
            interval_cell(s.aoc),
            *(difference_cell(s.over.get(control)) for control in CONTROLS),
            f"{100 * s.auc.mean:.1f}",
            f"{100 * s.lerf_auc.mean:.1f}",
            interval_cell(s.srg, spec="+.1f"),
            f"{100 * s.tied:.0f}%",
            count_cell(s.aoc, s.seeds),
        )
        for s in summaries
    ]


def _tables(summaries: Sequence[MorfSummary]) -> list[Table]:
    title = f"deletion, fill {summaries[0].fill}, {summaries[0].steps} steps; percent"
    notes = [caution(s.aoc for s in summaries)]
    if any(s.aoc.excluded for s in summaries):
        notes.append("excluded: images whose clean probability is not above --floor have no AOC")
    return [Table(title, MORF_HEADINGS, morf_table(summaries), "\n".join(filter(None, notes)))]


def _draw(folder: Path, rows: Sequence[Row]) -> None:
    """``curves.csv`` and the plots."""
    curves = mean_curves(rows)
    with (
        replacing(folder / "curves.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(("model", "method", "order", "fraction", "probability"))
        for (model, method, order), (fractions, probabilities) in curves.items():
            for fraction, probability in zip(fractions, probabilities, strict=True):
                writer.writerow((model, method, order, f"{fraction:.6f}", f"{probability:.6f}"))
    save_figure(plot_curves(rows), folder, "curves")


section("morf", summarise_morf, _tables, _draw)


def mean_curves(
    rows: Sequence[Row],
) -> dict[tuple[str, str, str], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(model, method, order) → fractions and mean probabilities, each (S+1,)."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["method"], row["order"]), []).append(row)
    return {
        key: (
            np.array(group[0]["fractions"]),
            np.mean([row["probabilities"] for row in group], axis=0),
        )
        for key, group in groups.items()
    }


def plot_curves(rows: Sequence[Row]) -> Any:
    """Mean deletion curves, a panel a model: MoRF solid, LeRF dashed. A matplotlib Figure."""
    from matplotlib.figure import Figure

    curves = mean_curves(rows)
    models = list(dict.fromkeys(model for model, _, _ in curves))
    methods = list(dict.fromkeys(method for _, method, _ in curves))
    coloured = [method for method in methods if method not in CONTROLS]
    colour = {m: PALETTE[i % len(PALETTE)] for i, m in enumerate(coloured)}
    marker = {m: markers(i) for i, m in enumerate(coloured)}
    colour |= {"random": "0.45", "centre": "0.7"}
    figure = Figure(figsize=(2.9 + 4.6 * len(models), 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(models), sharey=True))
    for axis, model in zip(axes, models, strict=True):
        for (owner, method, order), (fractions, probabilities) in curves.items():
            if owner == model:
                axis.plot(
                    100 * fractions,
                    probabilities,
                    color=colour[method],
                    linestyle="-" if order == "morf" else (0, (4, 2)),
                    linewidth=1.8,
                    marker=marker.get(method, ""),
                    markersize=4,
                    label=method if order == "morf" else None,
                )
        axis.set_title(model, fontsize=11)
        axis.set_xlabel("patches removed (%)")
        axis.set_ylim(0, 1)
        axis.set_xlim(0, 100)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("probability of the clean prediction")
    lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.legend(
        handles=[lines[method] for method in methods],
        loc="outside right upper",
        frameon=False,
        fontsize=9,
        title="solid: most relevant first\ndashed: least relevant first",
    )
    return figure
