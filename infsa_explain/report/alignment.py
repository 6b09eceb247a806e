"""Alignment with the Perron vector: rows become a table of vectors, a table of layers, a picture.

The question is not whether the cosine is high but whether it is higher than that of what costs
nothing. An agreement that is undefined, because a head's weights are all zero or its graph has no
cycle, counts as 0 in every mean, so that a model whose heads are half dead does not come out well;
the share of such heads stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval, bootstrap_mean
from numpy.typing import NDArray

from ..evaluate.rows import Row
from .sections import save_figure, section
from .tables import (
    Difference,
    Seeds,
    Table,
    by_model,
    caution,
    count_cell,
    difference_cell,
    differences,
    interval_cell,
    per_image,
    seeds,
    unique,
)

__all__ = [
    "ALIGNMENT_HEADINGS",
    "LAYER_HEADINGS",
    "AlignmentSummary",
    "LayerSummary",
    "alignment_table",
    "layer_table",
    "plot_alignment",
    "summarise_alignment",
    "summarise_layers",
]

#: What the paper reports for the cosine, arXiv 2603.00175; it gives no control beside it.
PUBLISHED_COSINE = 0.985


@dataclass(frozen=True)
class AlignmentSummary:
    """How well one vector agrees with the Perron vector, on one model.

    Every mean is over images, of each image's mean over layers and heads.

    Attributes:
        vector: ``linear``, the weights `a`, or what is compared beside them.
        cosine, centred, spearman: higher is better, at most 1.
        behind: cosine of ``linear`` minus this vector's, on the same images; positive where the
            weights are better; None for ``linear`` itself.
        undefined: share of (image, layer, head) without a defined cosine.
        seeds: of the cosine.
    """

    model: str
    vector: str
    cosine: MeanInterval
    centred: MeanInterval
    spearman: MeanInterval
    behind: Difference | None
    undefined: float
    seeds: Seeds


@dataclass(frozen=True)
class LayerSummary:
    """The linear weights and the spectrum of one layer, means over images and heads.

    Attributes:
        value: spectral radius ρ of Â.
        gap: 1 − |λ₂|/ρ; power iteration gains a factor 1/(1 − gap) a step.
        residual: the largest, relative to ρ.
        unconverged, ambiguous, dead: shares of (image, head): Perron vector beyond the tolerance;
            not unique; all linear weights zero.
        invalid_rows: share of rows with γ Σ_j Â_ij > 1, for which the walk is no chain.
        seconds: for the Perron vectors of all heads of one image.
    """

    model: str
    layer: int
    cosine: MeanInterval
    centred: MeanInterval
    spearman: MeanInterval
    value: float
    gap: float
    residual: float
    unconverged: float
    ambiguous: float
    dead: float
    invalid_rows: float
    seconds: float


def summarise_alignment(rows: Sequence[Row]) -> list[AlignmentSummary]:
    """Summaries of every (model, vector), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Alignment`.
    """
    groups = by_model(rows)
    pairs = {
        (model, vector): (_per_image(own, "cosine", "linear"), _per_image(own, "cosine", vector))
        for model, own in groups.items()
        for vector in own[0]["cosine"]
        if vector != "linear"
    }
    behind = differences(pairs)
    return [
        AlignmentSummary(
            model,
            vector,
            bootstrap_mean(_per_image(own, "cosine", vector)),
            bootstrap_mean(_per_image(own, "centred", vector)),
            bootstrap_mean(_per_image(own, "spearman", vector)),
            behind.get((model, vector)),
            float(np.mean([row["cosine"][vector] is None for row in own])),
            seeds(own, _agreement("cosine", vector)),
        )
        for model, own in groups.items()
        for vector in own[0]["cosine"]
    ]


def summarise_layers(rows: Sequence[Row]) -> list[LayerSummary]:
    """Summaries of the linear weights by (model, layer)."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["layer"]), []).append(row)
    return [
        LayerSummary(
            model,
            layer,
            bootstrap_mean(_per_image(own, "cosine", "linear")),
            bootstrap_mean(_per_image(own, "centred", "linear")),
            bootstrap_mean(_per_image(own, "spearman", "linear")),
            _mean(own, "value"),
            _mean(own, "gap"),
            max((row["residual"] for row in own if row["residual"] is not None), default=np.nan),
            float(np.mean([not row["converged"] for row in own])),
            float(np.mean([not row["unique"] for row in own])),
            _mean(own, "dead"),
            _mean(own, "invalid_rows"),
            _mean(own, "seconds") * (1 + max(row["head"] for row in own)),
        )
        for (model, layer), own in groups.items()
    ]


def _per_image(rows: Sequence[Row], measure: str, vector: str) -> NDArray[np.float64]:
    """(n,) mean over layers and heads of each image; what is undefined counts as 0."""
    return per_image(rows, unique(rows, "image"), _agreement(measure, vector))


def _agreement(measure: str, vector: str) -> Callable[[Row], float]:
    return lambda row: row[measure][vector] or 0.0


def _mean(rows: Sequence[Row], field: str) -> float:
    known = [row[field] for row in rows if row[field] is not None]
    return float(np.mean(known)) if known else float("nan")


ALIGNMENT_HEADINGS = (
    "model",
    "vector",
    "cosine ↑ [95%]",
    "centred cosine ↑ [95%]",
    "Spearman ↑ [95%]",
    "cosine of `linear` over it [95%]",
    "undefined",
    "n",
)


def alignment_table(summaries: Sequence[AlignmentSummary]) -> list[tuple[str, ...]]:
    """The cells of the table of vectors, under ``ALIGNMENT_HEADINGS``."""
    return [
        (
            s.model,
            s.vector,
            *(interval_cell(value, 1, ".3f") for value in (s.cosine, s.centred, s.spearman)),
            difference_cell(s.behind, 1, "+.3f"),
            f"{s.undefined:.1%}",
            count_cell(s.cosine, s.seeds, 1, ".3f"),
        )
        for s in summaries
    ]


LAYER_HEADINGS = (
    "model",
    "layer",
    "cosine ↑ [95%]",
    "centred cosine ↑ [95%]",
    "Spearman ↑ [95%]",
    "ρ",
    "gap",
    "residual ≤",
    "unconverged",
    "not unique",
    "dead heads",
    "invalid rows",
    "s / image",
)


def layer_table(summaries: Sequence[LayerSummary]) -> list[tuple[str, ...]]:
    """The cells of the table of layers, under ``LAYER_HEADINGS``."""
    return [
        (
            s.model,
            str(s.layer),
            *(interval_cell(value, 1, ".3f") for value in (s.cosine, s.centred, s.spearman)),
            f"{s.value:.3f}",
            f"{s.gap:.2f}",
            f"{s.residual:.0e}",
            f"{s.unconverged:.1%}",
            f"{s.ambiguous:.1%}",
            f"{s.dead:.1%}",
            f"{s.invalid_rows:.1%}",
            f"{s.seconds:.2f}",
        )
        for s in summaries
    ]


def _summarise(rows: Sequence[Row]) -> dict[str, Sequence[AlignmentSummary | LayerSummary]]:
    return {"vectors": summarise_alignment(rows), "layers": summarise_layers(rows)}


def _tables(summaries: dict[str, Any]) -> list[Table]:
    vectors, layers = summaries["vectors"], summaries["layers"]
    published = f"published: cosine {PUBLISHED_COSINE} (arXiv 2603.00175), without a control"
    note = "\n".join(filter(None, (caution(s.cosine for s in vectors), published)))
    title = "agreement with the Perron vector"
    return [
        Table(title, ALIGNMENT_HEADINGS, alignment_table(vectors), note),
        Table("`linear` by layer", LAYER_HEADINGS, layer_table(layers)),
    ]


def _draw(folder: Path, rows: Sequence[Row]) -> None:
    save_figure(plot_alignment(rows), folder, "alignment")


section("align", _summarise, _tables, _draw)


def plot_alignment(rows: Sequence[Row]) -> Any:
    """Cosine by layer and head, and its histogram beside those of the controls, a row a model.

    A matplotlib Figure. Heads whose cosine is undefined on every image are left white.
    """
    from matplotlib.figure import Figure

    models = unique(rows, "model")
    figure = Figure(figsize=(10, 0.6 + 2.6 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(axes, models, strict=True):
        own = [row for row in rows if row["model"] == model]
        layers = sorted({row["layer"] for row in own})
        grid = np.full((len(layers), 1 + max(row["head"] for row in own)), np.nan)
        for i, layer in enumerate(layers):
            for head in range(grid.shape[1]):
                cosines = [
                    row["cosine"]["linear"]
                    for row in own
                    if (row["layer"], row["head"]) == (layer, head)
                    and row["cosine"]["linear"] is not None
                ]
                grid[i, head] = np.mean(cosines) if cosines else np.nan
        image = left.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        left.set_title(f"{model}: cosine of `linear` and Perron vector", fontsize=10)
        left.set_xlabel("head")
        left.set_ylabel("layer")
        left.set_yticks(range(len(layers)), [str(layer) for layer in layers])
        left.set_xticks(range(0, grid.shape[1], max(1, grid.shape[1] // 16)))
        figure.colorbar(image, ax=left)
        bins = np.linspace(0, 1, 41)
        for vector, colour in (
            ("uniform", "0.75"),
            ("degree", "#D55E00"),
            ("linear", "#0072B2"),
        ):
            values = [row["cosine"][vector] for row in own if row["cosine"][vector] is not None]
            right.hist(
                values,
                bins,
                histtype="stepfilled" if vector == "uniform" else "step",
                color=colour,
                linewidth=1.8,
                label=vector,
            )
        right.axvline(PUBLISHED_COSINE, color="black", linestyle=":", linewidth=1)
        right.set_xlabel(f"cosine (dotted: published {PUBLISHED_COSINE})")
        right.set_ylabel("images × layers × heads")
        right.spines[["top", "right"]].set_visible(False)
        right.legend(frameon=False, fontsize=8, loc="upper left")
    return figure
