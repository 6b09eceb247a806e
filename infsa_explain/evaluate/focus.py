"""How concentrated maps are, and how alike a model's tokens grow with depth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import torch
from infsa_metrics import (
    MeanInterval,
    effective_patches,
    entropy,
    gini,
    token_similarity,
)
from torch import Tensor, nn

from ..vits import unwrapped
from ..vits.blocks import blocks_of
from ..vits.passes import forward_pass, watching
from .batches import Batch, MapOptions, patch_scores
from .diagnostics import excluded_share, of_methods
from .registry import Measure, ModelValues, maps_of_models, register_measure
from .rows import Row, number
from .tables import (
    Table,
    by_method,
    by_model,
    difference_cell,
    interval_cell,
    sampling_note,
)
from .values import Difference, Images, differences

__all__ = ["Focus", "FocusSummary", "SimilaritySummary", "summarise_focus", "summarise_similarity"]


@register_measure
@dataclass(frozen=True)
class Focus(MapOptions, Measure):
    """Is a map sharp, whether it is right or not, and do the model's tokens over-smooth?

    One row per image and method: ``method``, ``entropy`` (a share of log P), ``gini``,
    ``effective_patches`` (a share of P); None where a map is zero everywhere. Negative scores, of
    methods that have any, count as 0.

    One row per image with ``similarity``, the mean cosine similarity between the tokens that leave
    each block, by depth, and ``untrained_similarity``, the same in the model untrained.
    """

    name: ClassVar[str] = "focus"
    title: ClassVar[str] = "Focus"
    question: ClassVar[str] = (
        "How sharp maps are, right or wrong, and how alike tokens grow with depth."
    )
    by_default: ClassVar[bool] = True
    judged: ClassVar[bool] = False

    def rows(self, batch: Batch) -> Iterator[Row]:
        for method, explanation in batch.explanations(self):
            scores = patch_scores(explanation).flatten(1).clamp_min(0)
            patches = scores.shape[1]
            values = {
                "entropy": entropy(scores) / math.log(patches),
                "gini": gini(scores),
                "effective_patches": effective_patches(scores) / patches,
            }
            for i, sample in enumerate(batch.samples):
                fields = {name: number(value[i]) for name, value in values.items()}
                yield {"image": sample.image_id, "method": method, **fields}
        similarity = _by_depth(batch.model, batch.images)
        untrained = _by_depth(batch.untrained(self.seed), batch.images)
        for i, sample in enumerate(batch.samples):
            yield {
                "image": sample.image_id,
                "similarity": [number(value[i]) for value in similarity],
                "untrained_similarity": [number(value[i]) for value in untrained],
            }

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> dict[str, Any]:
        return {"maps": summarise_focus(rows), "tokens": summarise_similarity(rows)}

    @classmethod
    def tables(cls, summaries: dict[str, Any]) -> list[Table]:
        return _focus_tables(summaries)

    @classmethod
    def quantities(cls, rows: Sequence[Row]) -> dict[str, dict[str, ModelValues]]:
        maps = [row for row in rows if "method" in row]
        return {"effective patches": maps_of_models(maps, itemgetter("effective_patches"))}

    @classmethod
    def diagnostics(cls, summaries: dict[str, Any]) -> dict[str, dict[str, str]]:
        maps = summaries["maps"]
        return {
            "maps that are zero everywhere": of_methods(
                maps, lambda s: excluded_share(s.measures["gini"])
            )
        }


def _by_depth(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Similarity of the tokens that leave each block, (B,) a block."""
    similarity: list[Tensor] = []

    def add(name: str, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tokens = output[0] if isinstance(output, tuple) else output
        similarity.append(token_similarity(tokens.float()))

    model = unwrapped(model)
    with watching(blocks_of(model), after=add), forward_pass(model), torch.no_grad():
        model(images)
    return similarity


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
    summaries = []
    for model, (images, methods) in by_method(row for row in rows if "method" in row).items():
        values = {
            method: {name: images.values(of_method, itemgetter(name)) for name in MEASURES}
            for method, of_method in methods.items()
        }
        over = differences(
            {
                method: (of_method["gini"], values[CONTROL]["gini"])
                for method, of_method in values.items()
                if method != CONTROL and CONTROL in values
            }
        )
        for method, of_method in values.items():
            intervals = {name: numbers.interval() for name, numbers in of_method.items()}
            summaries.append(FocusSummary(model, method, intervals, over.get(method)))
    return summaries


def summarise_similarity(rows: Sequence[Row]) -> list[SimilaritySummary]:
    """Summaries of every (model, layer)."""

    def mean(of_model: Sequence[Row], name: str, layer: int) -> MeanInterval:
        return Images.of(of_model).values(of_model, lambda row: row[name][layer]).interval()

    return [
        SimilaritySummary(
            model,
            layer,
            mean(of_model, "similarity", layer),
            mean(of_model, "untrained_similarity", layer),
        )
        for model, of_model in by_model(row for row in rows if "similarity" in row).items()
        for layer in range(len(of_model[0]["similarity"]))
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


def _focus_tables(summaries: dict[str, Any]) -> list[Table]:
    """How sharp maps are, and how alike tokens."""
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
    note = sampling_note(s.measures["gini"] for s in maps)
    return [
        Table("how sharp maps are, right or wrong; percent", HEADINGS, cells, note),
        Table("how alike tokens are, by depth", SIMILARITY_HEADINGS, by_depth),
    ]
