"""How concentrated a map is, and how alike the tokens are that a model computes.

Neither says whether a map is right: a map with all its mass on one wrong patch is as sharp as can
be. They say whether one is sharper than another on the same grid, and whether tokens grow alike
with depth (over-smoothing).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor

__all__ = ["effective_patches", "entropy", "gini", "token_similarity"]


def entropy(scores: Array) -> Tensor:
    """Shannon entropy of the scores as a distribution, −Σ p log p with p = s / Σs, in nats.

    Lower is sharper. Divide by log P to compare grids of different sizes.

    Args:
        scores: (..., P), finite and non-negative, P >= 1; a map of (gh, gw) patches goes in flat.

    Returns:
        (...) float64 in [0, log P], on the device of ``scores``: 0 for a single patch, log P for a
        constant map, NaN where all scores are zero.

    Raises:
        ValueError: if a score is negative, infinite or NaN, or there are none.

    Example:
        >>> entropy(torch.tensor([[0.0, 3.0], [2.0, 2.0]]))  # 0 and log 2
        tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    nats: Tensor = torch.special.entr(_shares(scores)).sum(-1)
    return nats


def effective_patches(scores: Array) -> Tensor:
    """Effective number of patches, exp(entropy): how many equal ones have the same entropy.

    Lower is sharper.

    Args and errors as in :func:`entropy`.

    Returns:
        (...) float64 in [1, P], on the device of ``scores``: k for k equal scores and zeros, NaN
        where all scores are zero.

    Source:
        The Hill number of order 1 (Hill 1973, Diversity and evenness).

    Example:
        >>> effective_patches(torch.tensor([0.0, 3.0, 3.0, 0.0]))
        tensor(2., dtype=torch.float64)
    """
    return entropy(scores).exp()


def gini(scores: Array) -> Tensor:
    """Gini index of the scores, Σ_i (2i − P − 1) s_(i) / (P Σs), s_(i) the i-th smallest.

    Higher is sharper.

    Args and errors as in :func:`entropy`.

    Returns:
        (...) float64 in [0, 1 − 1/P], on the device of ``scores``: 0 for a constant map, 1 − 1/P
        for a single patch, NaN where all scores are zero.

    Source:
        Hurley & Rickard 2009, Comparing measures of sparsity (arXiv:0811.4706).

    Example:
        >>> gini(torch.tensor([[0.0, 0.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0]]))
        tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    rising = _shares(scores).sort(-1).values
    patches = rising.shape[-1]
    weights = torch.arange(1 - patches, patches, 2, device=rising.device)
    return ((weights * rising).sum(-1) / patches).clamp(min=0)  # rounding: a constant map has 0


def token_similarity(tokens: Array) -> Tensor:
    """Mean cosine similarity between two different tokens; 1 where all have one direction.

    Its growth with depth is the usual measure of over-smoothing; less is better there. With t̂ the
    tokens at unit length it is (‖Σ t̂‖² − N) / (N (N − 1)), without forming the N×N similarities.
    Cosines keep their sign; Gong et al. average their absolute values.

    Args:
        tokens: (B, N, D), finite.

    Returns:
        (B,) float64 in [−1/(N − 1), 1], on the device of ``tokens``. NaN where a token is zero,
        and so has no direction, or N = 1.

    Raises:
        ValueError: if ``tokens`` are not (B, N, D) or not finite.

    Source:
        Gong et al. 2021 (arXiv:2104.12753), Wang et al. 2022 (arXiv:2203.05962).

    Example:
        >>> token_similarity(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [3.0, 0.0]]]))
        tensor([0., 1.], dtype=torch.float64)
    """
    tokens = to_tensor("tokens", tokens)
    if tokens.ndim != 3 or 0 in tokens.shape[1:]:
        raise ValueError(f"tokens must be of shape (B, N, D), got {tuple(tokens.shape)}")
    if not tokens.isfinite().all():
        raise ValueError("tokens must be finite values, got NaN or infinity")
    unit = tokens.detach().double()
    unit = unit / unit.abs().amax(-1, keepdim=True)  # so that no square over- or underflows
    unit = unit / unit.norm(dim=-1, keepdim=True)
    count = tokens.shape[1]
    pairs = count * (count - 1) or math.nan  # a single token has none
    squared_sum: Tensor = unit.sum(1).square().sum(-1)
    return ((squared_sum - count) / pairs).clamp(max=1)


def _shares(scores: Array) -> Tensor:
    """The scores as a distribution, s / Σs, in float64; NaN where all are zero."""
    scores = to_tensor("scores", scores)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must be of shape (..., P), P >= 1, got {tuple(scores.shape)}")
    valid = scores.isfinite() & (scores >= 0)
    if not valid.all():
        got = f"{int((~valid).sum())} others"
        raise ValueError(f"scores must be finite values of at least 0, got {got}")
    relative = scores.detach().double()
    relative = relative / relative.amax(-1, keepdim=True)  # so that the sum does not overflow
    shares: Tensor = relative / relative.sum(-1, keepdim=True)
    return shares
