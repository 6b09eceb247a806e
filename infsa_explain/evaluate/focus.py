"""How concentrated maps are, and how alike a model's tokens grow with depth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from infsa_metrics import effective_patches, entropy, gini, token_similarity
from torch import Tensor, nn

from ..models.randomisation import block_list
from ..vits import unwrapped
from ..vits.watching import forward_pass, watching
from .batches import Batch, MapOptions, patch_scores
from .rows import Row, number

__all__ = ["Focus"]


@dataclass(frozen=True)
class Focus(MapOptions):
    """Is a map sharp, whether it is right or not, and do the model's tokens over-smooth?

    One row per image and method: ``method``, ``entropy`` (a share of log P), ``gini``,
    ``effective_patches`` (a share of P); None where a map is zero everywhere. Negative scores, of
    methods that have any, count as 0.

    One row per image with ``similarity``, the mean cosine similarity between the tokens that leave
    each block, by depth, and ``untrained_similarity``, the same in the model untrained.
    """

    name: ClassVar[str] = "focus"

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


def _by_depth(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Similarity of the tokens that leave each block, (B,) a block."""
    similarity: list[Tensor] = []

    def add(name: str, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tokens = output[0] if isinstance(output, tuple) else output
        similarity.append(token_similarity(tokens.float()))

    model = unwrapped(model)
    blocks = dict(model.get_submodule(block_list(model)).named_children())
    with watching(blocks, after=add), forward_pass(model), torch.no_grad():
        model(images)
    return similarity
