"""Where the visits to a patch come from, and where walks from it go: a column and a row of F.

F = (I − γÂ)⁻¹ has N² entries. One column, F e, and one row, eᵀF, need only two linear solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.centrality import visits
from ..graph.solvers import solve
from ..vits.capturing import Graphs

__all__ = ["Contributions", "token_contributions"]


@dataclass(frozen=True)
class Contributions:
    """How one token contributes to the map ``visits``, in the map's units.

    Attributes:
        sources: (B, N), the part of this token's score due to walks that start at each token, from
            its column of F. They sum to the score.
        destinations: (B, N), the part of each token's score due to walks that start at this token,
            from its row of F. Summed over all starts they are the map.
    """

    sources: Tensor
    destinations: Tensor


def token_contributions(
    graphs: Graphs,
    token: int,
    layers: Sequence[int] = (-1,),
    heads: Sequence[int] | None = None,
    gamma: float | None = None,
) -> Contributions:
    """Split a token's score in the map ``visits`` by the start of the walks.

    F_ij is the number of visits to j of a walk from i, and s_j = (1/N) Σ_i F_ij. A head's map is s,
    scaled to sum to 1 over the patches; start i contributes F_ij / N in the same scale. Heads and
    layers are averaged as in :func:`infsa_explain.explain`, without dead heads.

    Args:
        graphs: captured in one pass.
        token: index into the N tokens; patches follow the prefix tokens.
        layers: layer indices.
        heads: head indices, or None for all.
        gamma: replaces the model's own γ, in (0, 1).

    Returns:
        Non-negative float64; NaN if all heads are dead.

    Raises:
        ValueError: if ``token`` is out of range, or γ is outside (0, 1).

    >>> import infsa_explain
    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2)
    >>> images = torch.rand(1, 3, 32, 32)
    >>> parts = token_contributions(infsa_explain.capture(vit.eval(), images), token=5)
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
