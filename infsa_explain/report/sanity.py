"""Sanity checks: rows become tables and a picture.

Controls stand in these tables, too: ``centre`` passes for perfectly stable and fails randomisation,
as it looks at nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean

from ..evaluate.rows import Row
from .sections import save_figure, section
from .tables import PALETTE, Table, by_model, caution, interval_cell, markers, per_image, unique

__all__ = ["SanitySummary", "plot_sanity", "summarise_sanity"]


@dataclass(frozen=True)
class SanitySummary:
    """One method on one model.

    Attributes:
        stages: what is random after each stage: ``"head"``, the blocks, the last first, and
            ``"embeddings"``, when everything is.
        spearman, ssim: of the map after each stage to the trained model's; lower is better.
        stability: Spearman's ρ to the map of the noisy image; higher is better.
        agreement: other method → ρ to its map.
    """

    model: str
    method: str
    stages: tuple[str, ...]
    spearman: tuple[MeanInterval, ...]
    ssim: tuple[MeanInterval, ...]
    stability: MeanInterval
    agreement: dict[str, MeanInterval]


def summarise_sanity(rows: Sequence[Row]) -> list[SanitySummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Sanity`.
    """
    return [
        _summary(model, method, [row for row in own if row["method"] == method])
        for model, own in by_model(rows).items()
        for method in unique(own, "method")
    ]


def _summary(model: str, method: str, rows: Sequence[Row]) -> SanitySummary:
    def mean(field: Callable[[Row], float | None]) -> MeanInterval:
        return bootstrap_mean(per_image(rows, unique(rows, "image"), field))

    def by_stage(name: str) -> tuple[MeanInterval, ...]:
        stages = range(len(rows[0][name]))
        return tuple(mean(lambda row, i=i: row[name][i]) for i in stages)  # type: ignore[misc]

    return SanitySummary(
        model,
        method,
        tuple(rows[0]["stages"]),
        by_stage("spearman"),
        by_stage("ssim"),
        mean(itemgetter("stability")),
        {
            other: mean(lambda row, other=other: row["agreement"][other])  # type: ignore[misc]
            for other in rows[0]["agreement"]
        },
    )


HEADINGS = (
    "model",
    "method",
    "ρ, head random ↓ [95%]",
    "ρ, last block too ↓ [95%]",
    "ρ, all random ↓ [95%]",
    "SSIM, all random ↓ [95%]",
    "stability ↑ [95%]",
    "constant maps",
    "n",
)


def _tables(summaries: Sequence[SanitySummary]) -> list[Table]:
    cells = [
        (
            s.model,
            s.method,
            *(interval_cell(s.spearman[i], 1, ".2f") for i in (0, 1, -1)),
            interval_cell(s.ssim[-1], 1, ".2f"),
            interval_cell(s.stability, 1, ".2f"),
            f"{s.spearman[-1].excluded / (s.spearman[-1].n + s.spearman[-1].excluded):.0%}",
            f"{s.stability.n + s.stability.excluded}",
        )
        for s in summaries
    ]
    note = caution(s.stability for s in summaries)
    tables = [Table("randomisation and noise, Spearman's ρ to the own map", HEADINGS, cells, note)]
    for model in dict.fromkeys(s.model for s in summaries):
        own = [s for s in summaries if s.model == model]
        if len(own) > 1:
            names = [s.method for s in own]
            matrix = [
                (s.method, *("1" if n == s.method else f"{s.agreement[n].mean:.2f}" for n in names))
                for s in own
            ]
            tables.append(Table(f"agreement of maps, ρ, {model}", ("", *names), matrix))
    return tables


def _draw(folder: Path, rows: Sequence[Row]) -> None:
    save_figure(plot_sanity(summarise_sanity(rows)), folder, "sanity")


def plot_sanity(summaries: Sequence[SanitySummary]) -> Any:
    """Decay of each map under randomisation, and the agreement of methods, a row a model.

    A matplotlib Figure.
    """
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(s.model for s in summaries))
    figure = Figure(figsize=(11, 0.5 + 4.2 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(axes, models, strict=True):
        own = [s for s in summaries if s.model == model]
        for i, s in enumerate(own):
            left.plot(
                [1, *(value.mean for value in s.spearman)],
                color=PALETTE[i % len(PALETTE)],
                marker=markers(i),
                linewidth=1.8,
                markersize=4,
                label=s.method,
            )
        left.axhline(0, color="0.6", linewidth=0.8)
        stages = ["trained", *own[0].stages]
        left.set_xticks(range(len(stages)), stages, rotation=45, ha="right", fontsize=8)
        left.set_ylim(-0.6, 1.05)
        left.set_title(f"{model}: made random from the head down", fontsize=10)
        left.set_ylabel("Spearman's ρ to the trained map")
        left.spines[["top", "right"]].set_visible(False)
        left.legend(frameon=False, fontsize=8, ncols=2)
        names = [s.method for s in own]
        grid = np.array([[1 if n == s.method else s.agreement[n].mean for n in names] for s in own])
        image = right.imshow(grid, cmap="RdBu_r", vmin=-1, vmax=1)
        right.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        right.set_yticks(range(len(names)), names, fontsize=8)
        right.set_title("agreement, Spearman's ρ", fontsize=10)
        figure.colorbar(image, ax=right, shrink=0.8)
    return figure


section("sanity", summarise_sanity, _tables, _draw)
