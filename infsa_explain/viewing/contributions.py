"""Where a patch's visits come from, and where walks from it go: a column and a row of F.

F = (I − γÂ)⁻¹ has N² entries; one column and one row are two solutions, F e and eᵀF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.centrality import visits
from ..graph.solvers import solve
from ..vits.capturing import Graphs

__all__ = ["Contributions", "contributions"]


@dataclass(frozen=True)
class Contributions:
    """What one token shares with the others, in the units of the map ``visits``.

    Attributes:
        sources: (B, N) what walks that start at each token add to this token's score, from its
            column of F; their sum is the score.
        destinations: (B, N) what walks that start at this token add to each token's score, from
            its row of F; summed over all starts they are the map.
    """

    sources: Tensor
    destinations: Tensor


def contributions(
    graphs: Graphs,
    token: int,
    layers: Sequence[int] = (-1,),
    heads: Sequence[int] | None = None,
    gamma: float | None = None,
) -> Contributions:
    """Take a token's score in the map ``visits`` apart.

    With F_ij the visits to j of a walk from i, and s_j = (1/N) Σ_i F_ij, a head's map is s scaled
    to sum 1 over the patches; F_ij / N in the same scale is what start i adds to it. Heads and
    layers are averaged as in :func:`infsa_explain.explain`, dead heads left out.

    Args:
        graphs: of one pass.
        token: an index into the N tokens; patches follow the prefix tokens.
        layers: indices.
        heads: indices, or None for all.
        gamma: in place of the model's own γ, in (0, 1).

    Returns:
        :class:`Contributions`, float64, non-negative; NaN where no head is left.

    Raises:
        ValueError: for a token out of range, or γ outside (0, 1).

    >>> import infsa_explain
    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2)
    >>> images = torch.rand(1, 3, 32, 32)
    >>> parts = contributions(infsa_explain.capture(vit.eval(), images), token=5)
    >>> score = infsa_explain.explain(vit, images, "visits").tokens[0, 5]
    >>> torch.allclose(parts.sources.sum(), score.double(), rtol=1e-4)
    True
    """
    tokens = graphs.operators[0].num_tokens
    if not 0 <= token < tokens:
        raise ValueError(f"token must be an index from 0 to {tokens - 1}, got {token}")
    per_layer = []
    for layer in (graphs.layers[index] for index in layers):
        op, survival = layer.operator, layer.gamma if gamma is None else gamma
        unit = torch.zeros_like(op.double.ones())
        unit[..., token] = 1
        both = torch.stack(
            [solve(op, survival, unit).x, solve(op, survival, unit, transposed=True).x]
        )
        total = tokens * visits(op, survival).scores[..., graphs.num_prefix_tokens :].sum(-1)
        shares = both / total.masked_fill(op.dead(), torch.nan)[..., None]
        per_layer.append((shares if heads is None else shares[:, :, list(heads)]).nanmean(2))
    sources, destinations = torch.stack(per_layer).nanmean(0)
    return Contributions(sources, destinations)
