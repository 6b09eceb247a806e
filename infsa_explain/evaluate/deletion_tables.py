"""Deletion curves told: summaries, tables and charts of the rows of :mod:`.deletion`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval
from numpy.typing import NDArray

from ..drawing.charts import PALETTE, Line, LineChart, markers
from ..files import replacing
from .registry import ModelValues, maps_of_models
from .rows import Row
from .tables import (
    CONTROLS,
    FAMILY,
    Table,
    by_model,
    count_cell,
    difference_cell,
    interval_cell,
    sampling_note,
    unique,
)
from .values import Difference, Images, Seeds, Values, differences_to_controls

__all__ = [
    "MORF_HEADINGS",
    "MorfSummary",
    "compared_quantities",
    "deletion_charts",
    "deletion_tables",
    "mean_curves",
    "morf_table",
    "plot_curves",
    "spread_table",
    "summarise_morf",
    "write_curves",
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
        median: of AOC over images, which a few very negative areas do not move.
        negative: share of images whose AOC is negative: the probability rises as patches go.
        right, wrong: AOC over the images that the model classifies as labelled, and over the
            others; None for images without labels.
        naopc: where AOC lies between the worst and the best order; None unless it was measured.
        still_predicted: area under the share of images whose class is still the predicted one, most
            relevant patches first; lower is better. None for rows of older runs.
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
    median: float = float("nan")
    negative: float = float("nan")
    right: MeanInterval | None = None
    wrong: MeanInterval | None = None
    naopc: MeanInterval | None = None
    still_predicted: MeanInterval | None = None


def summarise_morf(rows: Sequence[Row]) -> list[MorfSummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Morf`.
    """
    groups = {model: _by_order(of_model) for model, of_model in by_model(rows).items()}
    over = differences_to_controls(
        {
            model: {method: numbers["aoc"] for method, numbers in methods.items()}
            for model, methods in groups.items()
        }
    )
    return [
        MorfSummary(
            model,
            method,
            rows[0]["fill"],
            len(rows[0]["fractions"]) - 1,
            numbers["aoc"].interval(),
            numbers["auc"].interval(),
            numbers["lerf_auc"].interval(),
            (numbers["lerf_auc"] - numbers["auc"]).interval(),
            over.get((model, method), {}),
            float(np.mean(numbers["tied"].of_images)),
            numbers["aoc"].seeds,
            **_spread(numbers["aoc"], numbers["right"]),
            naopc=_interval(numbers.get("naopc")),
            still_predicted=_interval(numbers.get("still_predicted")),
        )
        for model, methods in groups.items()
        for method, numbers in methods.items()
    ]


def _interval(values: Values | None) -> MeanInterval | None:
    return None if values is None else values.interval()


def _spread(aoc: Values, right: Values) -> dict[str, Any]:
    """How AOC is spread over images, and its means where the model is right and where it is not."""
    areas = aoc.of_images[~np.isnan(aoc.of_images)]
    if not len(areas):
        return {}
    spread = {"median": float(np.median(areas)), "negative": float((areas < 0).mean())}
    if np.isnan(right.matrix).all():
        return spread
    parts = {
        name: Values(np.where(right.matrix == value, aoc.matrix, np.nan), aoc.clusters).interval()
        for name, value in (("right", 1), ("wrong", 0))
    }
    return spread | parts


def _is_right(row: Row) -> float | None:
    """1 if the prediction on the clean image is the label, else 0; None without a label."""
    label = row.get("label")
    return None if label is None else float(label == row["predicted"])


def _by_order(rows: Sequence[Row]) -> dict[str, dict[str, Values]]:
    """method → area → values image by image, of one model."""
    images = Images.of(rows)
    fields = {
        "aoc": ("morf", "aoc"),
        "auc": ("morf", "auc"),
        "lerf_auc": ("lerf", "auc"),
        "tied": ("morf", "tied"),
    }
    if any("naopc" in row for row in rows):
        fields["naopc"] = ("morf", "naopc")
    if all("still_predicted_auc" in row for row in rows):  # not in older runs
        fields["still_predicted"] = ("morf", "still_predicted_auc")
    right = images.values((row for row in rows if row["order"] == "morf"), _is_right)
    return {
        method: {
            name: images.values(_rows(rows, method, order), itemgetter(field))
            for name, (order, field) in fields.items()
        }
        | {"right": right}
        for method in unique(rows, "method")
    }


def _rows(rows: Iterable[Row], method: str, order: str) -> list[Row]:
    return [row for row in rows if row["method"] == method and row["order"] == order]


def compared_quantities(rows: Sequence[Row]) -> dict[str, dict[str, ModelValues]]:
    """AOC over that of ``random`` on the same model, SRG, and NAOPC. AOC cannot be compared."""
    over_random: dict[str, ModelValues] = {}
    srg: dict[str, ModelValues] = {}
    for model, of_model in by_model(rows).items():
        images = Images.of(of_model)
        areas = _by_order(of_model)
        maps = {method: of for method, of in areas.items() if method not in CONTROLS}
        srg[model] = images, {m: of["lerf_auc"] - of["auc"] for m, of in maps.items()}
        if "random" in areas:
            aoc = areas["random"]["aoc"]
            over_random[model] = images, {m: of["aoc"] - aoc for m, of in maps.items()}
    quantities = {"MoRF-AOC over random": over_random, "SRG": srg}
    if any("naopc" in row for row in rows):
        ranked = [row for row in rows if row["order"] == "morf"]
        quantities["NAOPC"] = maps_of_models(ranked, lambda row: row.get("naopc"))
    return quantities


def deletion_tables(summaries: Sequence[MorfSummary]) -> list[Table]:
    """Areas with their differences to the controls, how they are spread, and NAOPC."""
    title = f"deletion, fill {summaries[0].fill}, {summaries[0].steps} steps; percent"
    notes = [sampling_note(s.aoc for s in summaries), FAMILY]
    if any(s.aoc.excluded for s in summaries):
        notes.append("excluded: images whose clean probability is not above --floor have no AOC")
    note = "\n".join(filter(None, notes))
    spread = "MoRF-AOC by image: median, negative, right and wrong predictions; percent"
    tables = [
        Table(title, MORF_HEADINGS, morf_table(summaries), note),
        Table(spread, SPREAD_HEADINGS, spread_table(summaries), SPREAD_NOTE),
    ]
    if any(s.naopc for s in summaries):
        cells = [(s.model, s.method, *_part_cells(s.naopc)) for s in summaries]
        between = "NAOPC: MoRF-AOC between the worst order, 0, and the best, 100"
        tables.append(Table(between, NAOPC_HEADINGS, cells, NAOPC_NOTE))
    return tables


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


SPREAD_HEADINGS = (
    "model",
    "method",
    "median ↑",
    "negative ↓",
    "predicted right ↑ [95%]",
    "n",
    "predicted wrong ↑ [95%]",
    "n",
    "still predicted ↓ [95%]",
)
NAOPC_HEADINGS = ("model", "method", "NAOPC ↑ [95%]", "n")
NAOPC_NOTE = (
    "The orders were searched with the same steps: exactly up to 12 patches, beyond by a beam, "
    "which may miss the best and the worst."
)
SPREAD_NOTE = (
    "predicted right: the prediction on the clean image is the label. still predicted: area under "
    "the share of images whose class is still the predicted one, most relevant patches first."
)


def spread_table(summaries: Sequence[MorfSummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``SPREAD_HEADINGS``; in percent."""
    return [
        (
            s.model,
            s.method,
            f"{100 * s.median:.1f}",
            f"{100 * s.negative:.1f}",
            *_part_cells(s.right),
            *_part_cells(s.wrong),
            _part_cells(s.still_predicted)[0],
        )
        for s in summaries
    ]


def _part_cells(part: MeanInterval | None) -> tuple[str, str]:
    """Mean and number of images; dashes for images without labels, or for no image."""
    return ("—", "—") if part is None else (interval_cell(part) if part.n else "—", str(part.n))


def write_curves(path: Path, curves: Curves) -> None:
    """Every mean curve, a line a point."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "method", "order", "fraction", "probability"))
        for (model, method, order), (fractions, probabilities) in curves.items():
            for fraction, probability in zip(fractions, probabilities, strict=True):
                writer.writerow((model, method, order, f"{fraction:.6f}", f"{probability:.6f}"))


#: (model, method, order) → fractions and mean probabilities, each (S+1,).
Curves = dict[tuple[str, str, str], tuple[NDArray[np.float64], NDArray[np.float64]]]


def mean_curves(rows: Sequence[Row]) -> Curves:
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


#: Points of a curve that are drawn, at most.
POINTS = 100


def deletion_charts(rows: Sequence[Row]) -> list[LineChart]:
    """Mean curves of every model, most relevant first and least relevant first.

    The first charts are of the probability, the others of the share of images whose class is still
    the predicted one. Around each mean is its pointwise 95% interval.
    """
    models = by_model(rows)
    charts = [
        _deletion_chart(model, of_model, "probabilities", "probability of the class")
        for model, of_model in models.items()
    ]
    for model, of_model in models.items():
        if all(None not in row.get("still_predicted", [None]) for row in of_model):
            title = f"{model}: class still predicted"
            share = "share of images"
            charts.append(_deletion_chart(title, of_model, "still_predicted", share))
    return charts


def _deletion_chart(title: str, rows: Sequence[Row], field: str, y_label: str) -> LineChart:
    fractions = np.array(rows[0]["fractions"])
    shown = np.unique(np.linspace(0, len(fractions) - 1, POINTS).round().astype(int))
    images = Images.of(rows)
    lines = [
        Line(
            method,
            order,
            *images.mean_curve(
                _rows(rows, method, order), lambda row: [row[field][point] for point in shown]
            ),
        )
        for method, order in product(unique(rows, "method"), ("morf", "lerf"))
    ]
    return LineChart(
        title=title,
        lines=lines,
        x=fractions[shown],
        at=[f"{fraction:.1%} removed" for fraction in fractions[shown]],
        x_ticks=[(x / 100, str(x)) for x in (0, 20, 40, 60, 80, 100)],
        slanted=False,
        y_ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        x_label="patches removed (%)",
        y_label=y_label,
    )
