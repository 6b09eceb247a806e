"""How alike two maps are: cosine, centred cosine and rank correlation, one value a pair.

The cosine of two non-negative vectors is high whatever they say: two independent uniform draws of
many entries have 0.75, and any map has a high one with the constant map if it is flat. The centred
cosine (Pearson's r) and Spearman's ρ take that away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor

__all__ = ["centred_cosine", "cosine", "spearman"]


def cosine(a: Array, b: Array) -> Tensor:
    """Cosine of the angle, aᵀb / (‖a‖ ‖b‖); 1 is the same direction.

    Args:
        a: (..., N).
        b: (..., N), of a shape that broadcasts with ``a``.

    Returns:
        (...) float64 in [−1, 1]; NaN where a vector is zero or has a NaN.

    Raises:
        ValueError: if the vectors differ in length.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    tensor(0.7071, dtype=torch.float64)
    """
    a, b = _pair(a, b)
    scale = a.norm(dim=-1) * b.norm(dim=-1)
    product: Tensor = (a * b).sum(-1) / scale.where(scale > 0, torch.nan)
    return product.clamp(-1, 1)


def centred_cosine(a: Array, b: Array) -> Tensor:
    """Cosine after each vector's mean is taken off: Pearson's r.

    Args, shapes and errors as in :func:`cosine`; NaN where a vector is constant.

    >>> r = centred_cosine(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0]))
    >>> round(r.item(), 6)
    1.0
    """
    a, b = _pair(a, b)
    return cosine(_centred(a), _centred(b))


def spearman(a: Array, b: Array) -> Tensor:
    """Spearman's ρ: Pearson's r of the ranks, ties sharing their mean rank.

    Args, shapes and errors as in :func:`cosine`; NaN where a vector is constant.

    >>> rho = spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 100.0]))
    >>> round(rho.item(), 6)
    1.0
    """
    a, b = _pair(a, b)
    return centred_cosine(_ranks(a), _ranks(b))


def _pair(a: Array, b: Array) -> tuple[Tensor, Tensor]:
    a, b = to_tensor("a", a), to_tensor("b", b)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"a and b must have the same last dimension, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return a.detach().double(), b.detach().double()


def _centred(x: Tensor) -> Tensor:
    """x minus its mean; exactly zero where x is constant, which rounding would not leave so."""
    constant = (x == x[..., :1]).all(-1, keepdim=True)
    return (x - x.mean(-1, keepdim=True)).masked_fill(constant, 0)


def _ranks(x: Tensor) -> Tensor:
    """Mean ranks, 1 for the smallest: (..., N). NaN where the vector has one."""
    ordered = x.sort(-1).values.contiguous()
    below = torch.searchsorted(ordered, x.contiguous(), side="left")
    not_above = torch.searchsorted(ordered, x.contiguous(), side="right")
    ranks = (below + 1 + not_above).double() / 2
    return ranks.masked_fill(x.isnan().any(-1, keepdim=True), torch.nan)
