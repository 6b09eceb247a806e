"""Alignment with the Perron vector: rows become a table of vectors, a table of layers, a picture.

The question is not whether the cosine is high but whether it is higher than that of what costs
nothing. A head whose weights are all zero, or whose graph has no cycle, is dead: its agreement
counts as 0, so that a model whose heads are half dead does not come out well. The mean over the
heads that are alive stands beside it, and the number of dead ones. A head with no Perron vector to
compare with, because none is proven or there are several, is left out of every mean and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval

from ..drawing.charts import Forest, ForestRow, Heat, HeatCell
from .findings import LEVEL, capital, p_text, tested
from .rows import Row
from .tables import (
    Table,
    by_model,
    count_cell,
    difference_cell,
    interval_cell,
    sampling_note,
    unique,
)
from .values import Difference, Images, Seeds, Values, differences

__all__ = [
    "ALIGNMENT_HEADINGS",
    "LAYER_HEADINGS",
    "AlignmentSummary",
    "LayerSummary",
    "alignment_table",
    "layers_table",
    "plot_alignment",
    "summarise_alignment",
    "summarise_layers",
]

#: What the paper reports for the cosine, arXiv 2603.00175; it gives no control beside it.
PUBLISHED_COSINE = 0.985
COUNTED = (
    "dead: heads of an image whose vector is zero or whose graph has no cycle; 0 in every column "
    "but `alive only`. unresolved: heads without one proven Perron vector; in no mean"
)


@dataclass(frozen=True)
class AlignmentSummary:
    """How well one vector agrees with the Perron vector, on one model.

    Every mean is over images, of each image's mean over layers and heads.

    Attributes:
        vector: ``linear``, the weights `a`, or what is compared beside them.
        cosine, centred, spearman: higher is better, at most 1; dead heads count as 0.
        alive: cosine over the heads that are not dead.
        behind: cosine of ``linear`` minus this vector's, on the same images; positive where the
            weights are better; None for ``linear`` itself.
        heads: number of (image, layer, head).
        dead: how many of them have no cosine and count as 0.
        left_out: how many have no Perron vector to compare with, and are in no mean.
        seeds: of the cosine.
    """

    model: str
    vector: str
    cosine: MeanInterval
    alive: MeanInterval
    centred: MeanInterval
    spearman: MeanInterval
    behind: Difference | None
    heads: int
    dead: int
    left_out: int
    seeds: Seeds


@dataclass(frozen=True)
class LayerSummary:
    """The linear weights and the spectrum of one layer, means over images and heads.

    Attributes:
        value: spectral radius ρ of Â.
        gap: 1 − |λ₂|/ρ; power iteration gains a factor 1/(1 − gap) a step.
        error_bound: the largest of a Perron vector within the tolerance, 2-norm.
        unresolved, ambiguous, dead: shares of (image, head): Perron vector not proven within the
            tolerance; several of them; all linear weights zero.
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
    error_bound: float
    unresolved: float
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
    behind = {
        model: differences(
            {
                vector: (_values(of_model, "cosine", "linear"), _values(of_model, "cosine", vector))
                for vector in of_model[0]["cosine"]
                if vector != "linear"
            }
        )
        for model, of_model in groups.items()
    }
    return [
        AlignmentSummary(
            model,
            vector,
            _values(of_model, "cosine", vector).interval(),
            _values(of_model, "cosine", vector, alive=True).interval(),
            _values(of_model, "centred", vector).interval(),
            _values(of_model, "spearman", vector).interval(),
            behind[model].get(vector),
            len(of_model),
            sum(row["cosine"][vector] is None and not _left_out(row, vector) for row in of_model),
            sum(_left_out(row, vector) for row in of_model),
            _values(of_model, "cosine", vector).seeds,
        )
        for model, of_model in groups.items()
        for vector in of_model[0]["cosine"]
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
            _values(of_model, "cosine", "linear").interval(),
            _values(of_model, "centred", "linear").interval(),
            _values(of_model, "spearman", "linear").interval(),
            _mean(of_model, "value"),
            _mean(of_model, "gap"),
            max(
                (row.get("error_bound") or 0 for row in of_model if row["converged"]),
                default=np.nan,
            ),
            float(np.mean([not _resolved(row) for row in of_model])),
            float(np.mean([_several(row) for row in of_model])),
            _mean(of_model, "dead"),
            _mean(of_model, "invalid_rows"),
            _mean(of_model, "seconds") * (1 + max(row["head"] for row in of_model)),
        )
        for (model, layer), of_model in groups.items()
    ]


def _values(rows: Sequence[Row], measure: str, vector: str, alive: bool = False) -> Values:
    """Mean over layers and heads of each image; dead ones count as 0, or not at all."""
    counted = [row for row in rows if not _left_out(row, vector)]
    if alive:
        counted = [row for row in counted if row[measure][vector] is not None]
    return Images.of(rows).values(counted, _agreement(measure, vector))


def _agreement(measure: str, vector: str) -> Callable[[Row], float | None]:
    """The agreement of a row: 0 where it is dead, None where it is left out."""
    return lambda row: None if _left_out(row, vector) else row[measure][vector] or 0.0


def _left_out(row: Row, vector: str) -> bool:
    return vector in row.get("left_out", ())  # older runs have none


def _resolved(row: Row) -> bool:
    return bool(row.get("resolved", row["converged"]))


def _several(row: Row) -> bool:
    """Whether a graph has several Perron vectors."""
    return _resolved(row) and not row["unique"] and row["value"] != 0


def _mean(rows: Sequence[Row], field: str) -> float:
    numbers = [row[field] for row in rows if row[field] is not None]
    return float(np.mean(numbers)) if numbers else float("nan")


ALIGNMENT_HEADINGS = (
    "model",
    "vector",
    "cosine ↑ [95%], dead heads 0",
    "cosine ↑ [95%], alive only",
    "centred cosine ↑ [95%]",
    "Spearman ↑ [95%]",
    "cosine of `linear` over it [95%]",
    "dead",
    "unresolved",
    "n",
)


def alignment_table(summaries: Sequence[AlignmentSummary]) -> list[tuple[str, ...]]:
    """The cells of the table of vectors, under ``ALIGNMENT_HEADINGS``."""
    return [
        (
            s.model,
            s.vector,
            *(
                interval_cell(value, 1, ".3f")
                for value in (s.cosine, s.alive, s.centred, s.spearman)
            ),
            difference_cell(s.behind, 1, "+.3f"),
            f"{s.dead} of {s.heads}",
            f"{s.left_out} of {s.heads}",
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
    "error ≤",
    "unresolved",
    "not unique",
    "dead heads",
    "invalid rows",
    "s / image",
)


def layers_table(summaries: Sequence[LayerSummary]) -> list[tuple[str, ...]]:
    """The cells of the table of layers, under ``LAYER_HEADINGS``."""
    return [
        (
            s.model,
            str(s.layer),
            *(interval_cell(value, 1, ".3f") for value in (s.cosine, s.centred, s.spearman)),
            f"{s.value:.3f}",
            f"{s.gap:.2f}",
            f"{s.error_bound:.0e}",
            f"{s.unresolved:.1%}",
            f"{s.ambiguous:.1%}",
            f"{s.dead:.1%}",
            f"{s.invalid_rows:.1%}",
            f"{s.seconds:.2f}",
        )
        for s in summaries
    ]


def alignment_tables(
    vectors: Sequence[AlignmentSummary], layers: Sequence[LayerSummary]
) -> list[Table]:
    """The table of vectors, and that of layers."""
    published = f"published: cosine {PUBLISHED_COSINE} (arXiv 2603.00175), without a control"
    note = "\n".join(filter(None, (sampling_note(s.cosine for s in vectors), COUNTED, published)))
    title = "agreement with the Perron vector"
    return [
        Table(title, ALIGNMENT_HEADINGS, alignment_table(vectors), note),
        Table("`linear` by layer", LAYER_HEADINGS, layers_table(layers)),
    ]


def headline(summaries: Sequence[AlignmentSummary], side: str) -> str:
    """How the linear weights compare with the degree, over models; nothing without tests."""
    tests = tested(s.behind for s in summaries if s.vector == "degree")
    if not tests:
        return ""
    better, worse = sum(map(_above, tests)), sum(map(_below, tests))
    models = f"{len(tests)} model{'s' if len(tests) > 1 else ''}"
    return (
        f"Of {models}, the linear weights follow the Perron vector better than plain "
        f"{_degree(side)} does in {better}, and less well in {worse}."
    )


def vectors_text(summaries: Sequence[AlignmentSummary], side: str) -> str:
    """One model's linear weights beside the degree and the weights untrained."""
    by = {s.vector: s for s in summaries}
    linear = by["linear"]
    text = (
        f"On `{linear.model}`, the linear weights agree with the {side} Perron vector at cosine "
        f"{_cosine(linear.cosine)}"
    )
    sentences = [f"{text}."]
    for vector, name in (
        ("degree", f"plain {_degree(side)}"),
        ("untrained", "the model untrained"),
    ):
        other = by.get(vector)
        if other is None or not other.cosine.n:
            continue
        sentence = f"{capital(name)} has {_cosine(other.cosine)}"
        for test in tested([other.behind]):
            how = "are better" if _above(test) else "are worse" if _below(test) else ""
            sentence += (
                f": {f'the weights {how}' if how else 'no difference is found'} ({p_text(test)})"
            )
        sentences.append(f"{sentence}.")
    if linear.dead:
        sentences.append(
            f"Dead heads, {linear.dead / linear.heads:.1%}, count as 0 in the first; without them "
            f"it is {_cosine(linear.alive)}."
        )
    if linear.left_out:
        sentences.append(
            f"Heads without one proven Perron vector, {linear.left_out / linear.heads:.1%}, are "
            "left out."
        )
    return " ".join(sentences)


def _above(test: Difference) -> bool:
    return test.p_value <= LEVEL and test.interval.mean > 0


def _below(test: Difference) -> bool:
    return test.p_value <= LEVEL and test.interval.mean < 0


def _cosine(value: MeanInterval) -> str:
    return interval_cell(value, 1, ".3f")


def _degree(side: str) -> str:
    """The degree that goes with a Perron vector."""
    return "in-degree" if side == "left" else "out-degree"


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
    from matplotlib import colormaps  # loads slowly
    from matplotlib.colors import to_hex

    colours = colormaps["viridis"]
    scale = [to_hex(colours(x)) for x in np.linspace(0, 1, 9)]
    heats = []
    for model, of_model in by_model(rows).items():
        groups: dict[tuple[int, int], list[Row]] = {}
        for row in of_model:
            groups.setdefault((row["layer"], row["head"]), []).append(row)
        grid: dict[int, list[HeatCell]] = {}
        for (layer, head), group in sorted(groups.items()):
            cosines = [r["cosine"]["linear"] for r in group if r["cosine"]["linear"] is not None]
            mean = float(np.mean(cosines)) if cosines else np.nan
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


def plot_alignment(rows: Sequence[Row]) -> Any:
    """Cosine by layer and head, and its histogram beside those of the controls, a row a model.

    A matplotlib Figure. Heads whose cosine is undefined on every image are left white.
    """
    from matplotlib.figure import Figure

    models = unique(rows, "model")
    figure = Figure(figsize=(10, 0.6 + 2.6 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(axes, models, strict=True):
        of_model = [row for row in rows if row["model"] == model]
        layers = sorted({row["layer"] for row in of_model})
        grid = np.full((len(layers), 1 + max(row["head"] for row in of_model)), np.nan)
        for i, layer in enumerate(layers):
            for head in range(grid.shape[1]):
                cosines = [
                    row["cosine"]["linear"]
                    for row in of_model
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
            values = [
                row["cosine"][vector] for row in of_model if row["cosine"][vector] is not None
            ]
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
