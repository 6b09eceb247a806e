"""How well Linear-InfSA's weights agree with the Perron vector of the token graph they stand for.

A high cosine alone says little: the vectors are non-negative, and the constant vector may score
0.98. So every graph's Perron vector is also compared with what needs no training or no weights:
in-degree, the weights of the unweighted mean query, the weights by a central key in place of a
central query, the constant vector, and the weights and graph of the same model untrained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from infsa_metrics import centred_cosine, cosine, spearman
from torch import Tensor, nn

from ..attention.functional import key_weights, linear_weights
from ..drawing.charts import save_figure
from ..graph.centrality import Perron, perron
from ..graph.solvers import survival_per_head
from ..methods import LayerChoice
from ..models.untraining import Start, has_starts
from ..ranges import MANY
from ..vits import attention_layers
from ..vits.capturing import Graphs, Layer, layer_index
from .alignment_tables import (
    alignment_forests,
    alignment_tables,
    headline,
    heat_maps,
    plot_alignment,
    summarise_alignment,
    summarise_layers,
    vectors_text,
)
from .batches import Batch
from .diagnostics import grouped, of_models, percent, worst_layer
from .registry import Chart, Measure, register_measure
from .rows import Row, number
from .tables import Table

__all__ = ["MEASURES", "Alignment"]

#: How alike two vectors are, each (B, H, N) and (B, H, N) to (B, H).
MEASURES = {"cosine": cosine, "centred": centred_cosine, "spearman": spearman}


@register_measure
@dataclass(frozen=True)
class Alignment(Measure):
    """The linear weights of every layer and head against the Perron vector of their graph.

    One row per image, layer and head: ``side``, ``layer``, ``head``, ``value`` (the spectral
    radius ρ), ``second`` (modulus of the second eigenvalue), ``gap``, ``residual``,
    ``error_bound`` (of the Perron vector, 2-norm), ``converged``, ``unique``, ``resolved`` (as in
    :class:`infsa_explain.graph.centrality.Perron`), ``dead`` (whether the linear weights are all
    zero), ``invalid_rows``, ``seconds`` (of the layer's Perron vectors, per image and head), and
    for each measure (``cosine``, ``centred``, ``spearman``) a mapping from vector to agreement.
    Undefined agreement is None: with a zero or constant vector, in a graph without cycles, and
    where there is no Perron vector to compare with, because the error bound is above the tolerance
    or there are several. ``left_out`` lists the vectors to which the last happened.

    Attributes:
        side: the Perron vector: ``"left"``, attention received, which the weights stand for, or
            ``"right"``, which is constant for softmax attention.
        layers: indices, negative from the end, or ``"last"``; None for all.
        steps: numbers of steps k > 1 of the weights' own power iteration, q̄ ← Σ a_i q_i, to
            compare beside the weights; see
            :func:`infsa_explain.attention.functional.linear_weights`.
        gamma: in place of the model's own γ, for ``invalid_rows``.
        tol: error bound, in the 2-norm, within which a Perron vector is good enough.
        control: whether to measure the model untrained, too. InfSA layers of this package are
            measured with each start of :func:`infsa_explain.models.untraining.untrained`.
        seed: of the untrained model.
    """

    name: ClassVar[str] = "align"
    title: ClassVar[str] = "Alignment"
    question: ClassVar[str] = (
        "Do the weights of Linear-InfSA follow the Perron vector of the token graph, and "
        "better than what costs nothing?"
    )
    by_default: ClassVar[bool] = True
    command: ClassVar[bool] = True
    judged: ClassVar[bool] = False

    side: Literal["left", "right"] = "left"
    layers: tuple[LayerChoice, ...] | None = None
    steps: tuple[int, ...] = ()
    gamma: float | None = None
    tol: float = 1e-6
    control: bool = True
    seed: int = 0

    def check(self, model: nn.Module) -> None:
        if any(k < 2 for k in self.steps):
            raise ValueError(f"steps must each be at least 2, got {list(self.steps)}")
        if any(k > MANY for k in self.steps):
            raise ValueError(f"steps must each be at most {MANY}, got {list(self.steps)}")
        if self.side not in ("left", "right"):
            raise ValueError(f"side must be 'left' or 'right', got {self.side!r}")
        _chosen(self.layers, len(attention_layers(model)))

    def rows(self, batch: Batch) -> Iterator[Row]:
        layers = batch.graphs.layers
        controls = _controls(batch, self.seed) if self.control else {}
        for index in _chosen(self.layers, len(layers)):
            fresh = {name: graphs.layers[index] for name, graphs in controls.items()}
            for place, head, found in _layer(layers[index], fresh, self):
                image = batch.samples[place].image_id
                yield {"image": image, "side": self.side, "layer": index, "head": head, **found}

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> dict[str, Any]:
        return {"vectors": summarise_alignment(rows), "layers": summarise_layers(rows)}

    @classmethod
    def tables(cls, summaries: dict[str, Any]) -> list[Table]:
        return alignment_tables(summaries["vectors"], summaries["layers"])

    @classmethod
    def charts(cls, rows: Sequence[Row], summaries: dict[str, Any]) -> list[Chart]:
        return [*alignment_forests(summaries["vectors"]), *heat_maps(rows)]

    @classmethod
    def save(cls, folder: Path, rows: Sequence[Row]) -> None:
        save_figure(plot_alignment(rows), folder, "alignment")

    @classmethod
    def findings(cls, rows: Sequence[Row], summaries: dict[str, Any]) -> list[str]:
        return [
            vectors_text(of_model, rows[0]["side"])
            for of_model in grouped(summaries["vectors"]).values()
        ]

    @classmethod
    def headline(cls, rows: Sequence[Row], summaries: dict[str, Any]) -> str:
        return headline(summaries["vectors"], rows[0]["side"])

    @classmethod
    def diagnostics(cls, summaries: dict[str, Any]) -> dict[str, dict[str, str]]:
        layers, vectors = summaries["layers"], summaries["vectors"]
        watched = {
            "dead heads": "dead",
            "rows for which the walk is no chain": "invalid_rows",
            "Perron vectors that are not resolved": "unresolved",
            "Perron vectors that are not unique": "ambiguous",
        }
        return {
            name: of_models(layers, partial(worst_layer, field=field))
            for name, field in watched.items()
        } | {
            "heads whose linear weights have no cosine": of_models(
                [s for s in vectors if s.vector == "linear"],
                lambda of_model: percent(of_model[0].dead / of_model[0].heads),
            )
        }


def _controls(batch: Batch, seed: int) -> dict[str, Graphs]:
    """Graphs of the model untrained; of InfSA layers with every way in which they may start."""
    starts = get_args(Start) if has_starts(batch.model) else ("own",)
    return {
        "untrained" if start == "own" else f"untrained-{start}": batch.untrained_graphs(seed, start)
        for start in starts
    }


def _chosen(layers: Sequence[LayerChoice] | None, depth: int) -> Iterable[int]:
    return range(depth) if layers is None else [layer_index(layer, depth) for layer in layers]


def _layer(
    layer: Layer, controls: Mapping[str, Layer], options: Alignment
) -> Iterable[tuple[int, int, dict[str, Any]]]:
    """(image, head, fields of the row) of one layer."""
    op = layer.operator
    began = time.perf_counter()
    truth = perron(op, options.side, options.tol)
    seconds = (time.perf_counter() - began) / (op.shape[0] * op.shape[1])
    vectors = _vectors(layer, options)
    truths = dict.fromkeys(vectors, truth)
    for name, control in controls.items():
        vectors[name] = linear_weights(control.operator.q, control.operator.k)
        truths[name] = perron(control.operator, options.side, options.tol)
    resolved = {name: _known(of) for name, of in truths.items()}
    agreement = {
        measure: {name: f(scores, resolved[name]) for name, scores in vectors.items()}
        for measure, f in MEASURES.items()
    }
    survival = survival_per_head(op, layer.gamma if options.gamma is None else options.gamma)
    invalid = (1 - survival * op.double.row_sums() < 0).double().mean(-1)
    dead = (vectors["linear"] == 0).all(-1)
    for image in range(op.shape[0]):
        for head in range(op.shape[1]):
            at = image, head
            yield (
                *at,
                {
                    **_certificate(truth, at),
                    "left_out": [name for name, of in truths.items() if _is_left_out(of, at)],
                    "dead": bool(dead[at]),
                    "invalid_rows": float(invalid[at]),
                    "seconds": seconds,
                    **{
                        measure: {vector: number(values[at]) for vector, values in by.items()}
                        for measure, by in agreement.items()
                    },
                },
            )


def _vectors(layer: Layer, options: Alignment) -> dict[str, Tensor]:
    """What is compared with the Perron vector, each (B, H, N)."""
    op = layer.operator
    ones = op.ones()
    degree = op.column_sums() if options.side == "left" else op.row_sums()
    return {
        "linear": linear_weights(op.q, op.k),
        **{f"linear-k{k}": linear_weights(op.q, op.k, steps=k) for k in options.steps},
        "central-key": linear_weights(op.q, op.k, central="keys"),
        "degree": degree,
        "mean-query": key_weights(ones[..., None] / op.num_tokens, op.q, op.k).squeeze(-1),
        "uniform": ones,
    }


def _known(truth: Perron) -> Tensor:
    """The Perron vectors, (B, H, N); NaN where they are not within the tolerance, or several."""
    return truth.vector.masked_fill(~truth.converged[..., None], torch.nan)


def _is_left_out(truth: Perron, at: tuple[int, int]) -> bool:
    """Whether a graph with cycles has no one Perron vector that was found."""
    return not truth.converged[at] and truth.value[at].item() != 0


def _certificate(truth: Perron, at: tuple[int, int]) -> dict[str, Any]:
    return {
        "value": number(truth.value[at]),
        "second": number(truth.second[at]),
        "gap": number(truth.gap[at]),
        "residual": number(truth.residual[at]),
        "error_bound": number(truth.error_bound[at]),
        "converged": bool(truth.converged[at]),
        "unique": bool(truth.unique[at]),
        "resolved": bool(truth.resolved[at]),
    }
