"""Infinite Self-Attention as functions of queries, keys and values.

Softmax attention makes every token's weights sum to one. InfSA keeps the raw non-negative
affinities and divides the whole graph by one number, its Frobenius norm. The graph can then be
read as the transitions of a walk that dies out:

    A+ = relu(q kᵀ / d)          affinities, row i attends to column j
    Â  = A+ / (‖A+‖_F + ε)       the token graph; spectral radius at most 1
    out = γ Â v                  Pure InfSA, one step of the walk

Linear-InfSA replaces Â by one row, an O(N) estimate of its left Perron vector, which every
token then receives.

Source: Infinite Self-Attention, arXiv 2603.00175, and its released code (``rho`` there is γ here).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .linear import at_least_float32, chunks
from .pure import affinity_product

__all__ = ["linear_infsa", "linear_weights", "pure_infsa", "token_graph"]

#: What Linear-InfSA averages.
Central = Literal["queries", "keys"]
EPS = 1e-6
#: γ of a new layer.
INITIAL_GAMMA = 0.95


def affinity(q: Tensor, k: Tensor) -> Tensor:
    """A+ = relu(q kᵀ / d), the non-negative affinities, at least in float32.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, M, d).

    Returns:
        (B, H, N, M), float32 whatever the autocast state, or float64 for float64 input.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_float32(q), at_least_float32(k)
        return torch.relu(q @ k.transpose(-2, -1) / q.shape[-1])


def token_graph(q: Tensor, k: Tensor, eps: float = EPS) -> Tensor:
    """Â = A+ / (‖A+‖_F + ε), the token graph of Pure InfSA.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        eps: keeps a graph without edges at zero.

    Returns:
        (B, H, N, N), non-negative, Frobenius norm at most 1. Row i is "i attends to".

    >>> q = k = torch.eye(2).view(1, 1, 2, 2)
    >>> token_graph(q, k)[0, 0].diagonal().square().sum().item()  # doctest: +ELLIPSIS
    0.99999...
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_float32(q).contiguous(), at_least_float32(k).contiguous()
        s, t, eps_st = _safe_scales(q, k, eps)
        graph = affinity(q / s, k / t)
        return graph / (frobenius_norm(graph)[..., None, None] + eps_st)


def frobenius_norm(graph: Tensor) -> Tensor:
    """‖graph‖_F of (..., N, N), in the graph's dtype, accurate to its last digits at any N.

    Norms of rows first, then their norm in float64: a single float32 sum over N² terms is off by
    1e-4 at N = 4,097.
    """
    rows = torch.linalg.vector_norm(graph, dim=-1)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return norm.to(graph.dtype)


def pure_infsa(q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, eps: float = EPS) -> Tensor:
    """γ Â v: one step of the absorbing walk, as γ (A+ v) / (‖A+‖_F + ε).

    Memory is linear in N, forward and backward: see :mod:`infsa_explain.attention.pure`.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        v: values, (B, H, N, d).
        gamma: survival of the walk per step, a float or (H,), in (0, 1).
        eps: see :func:`token_graph`.

    Returns:
        (B, H, N, d) in the dtype of ``v``.
    """
    with torch.autocast(q.device.type, enabled=False):
        queries, keys = (at_least_float32(x).contiguous() for x in (q, k))
        s, t, eps_st = _safe_scales(queries, keys, eps)
        scaled = queries / (s * q.shape[-1]), keys / t, v.to(queries.dtype)
        product, norm = affinity_product(*(x.flatten(0, 1) for x in scaled))
        product, norm = (x.view(*q.shape[:2], *x.shape[1:]) for x in (product, norm))
        scale = per_head(gamma, product) / (norm[..., None, None] + eps_st)
        return (scale * product).to(v.dtype)


def linear_weights(
    q: Tensor, k: Tensor, eps: float = EPS, steps: int = 1, central: Central = "queries"
) -> Tensor:
    """`a`: how much the central query attends to each token, an O(N) estimate of the Perron vector.

    e_i = ‖q_i‖₂, w = e / Σe, q̄ = Σ w_i q_i, a = relu(k q̄ / d) / (Σ relu(k q̄ / d) + ε).

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        eps: keeps a dead head at zero.
        steps: 1 for Linear-InfSA. Each further step averages the queries again by the weights
            found so far, q̄ ← Σ a_i q_i. This is power iteration on Âᵀ, except that the relu comes
            after the sum over tokens, not before. It converges to the left Perron vector only if
            no product is negative.
        central: what is averaged. ``"queries"``, as in the released code; ``"keys"``, as one
            description of the paper has it: with the central key k̄ = Σ w_i k_i, where w are the
            shares of ‖k_i‖₂, the weights are relu(q k̄ / d), which estimate the right Perron vector.

    Returns:
        (B, H, N), non-negative, without the factor γ. Sums to 1, or is all zero in a dead head,
        in which no key has a positive product with the central query.

    Raises:
        ValueError: if ``central`` is unknown.

    >>> q = torch.ones(1, 1, 3, 2)
    >>> linear_weights(q, torch.tensor([[[[1., 1], [2, 2], [-1, 0]]]]))[0, 0]
    tensor([0.3333, 0.6667, 0.0000])
    """
    if central not in get_args(Central):
        raise ValueError(f"central must be 'queries' or 'keys', got {central!r}")
    if central == "keys":
        q, k = k, q
    with torch.autocast(q.device.type, enabled=False):
        q, k = (at_least_float32(x).contiguous() for x in (q, k))
        # If all queries are zero, so is their mean, whatever the weights.
        energy = _norms(q)
        weight = energy / energy.sum(-2, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        for _ in range(steps):
            weight = key_weights(weight, q, k, eps)
        weights: Tensor = weight.squeeze(-1)
        return weights


def key_weights(weight: Tensor, q: Tensor, k: Tensor, eps: float = EPS) -> Tensor:
    """relu(k q̄ / d) divided by its sum, for the query q̄ = Σ weight_i q_i.

    Args:
        weight: (B, H, N, 1).

    Returns:
        (B, H, N, 1).
    """
    s, t, eps_st = _safe_scales(q, k, eps)
    pairs = zip(chunks(weight, 2), chunks(q, 2), strict=True)
    central_query = torch.stack([(w * x).sum(-2, keepdim=True) for w, x in pairs]).sum(0)
    scores = torch.relu(k @ (central_query / (s * q.shape[-1])).transpose(-2, -1)) / t
    return scores / (scores.sum(-2, keepdim=True) + eps_st)


def _norms(q: Tensor) -> Tensor:
    """‖q_i‖₂ up to a common factor in each head, (B, H, N, 1); computed in chunks of tokens."""
    s = _safe_scale(q.detach())
    norms = [torch.linalg.vector_norm(x / s, dim=-1, keepdim=True) for x in chunks(q, 2)]
    return torch.cat(norms, dim=2)


def linear_infsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float | Tensor,
    eps: float = EPS,
    central: Central = "queries",
) -> Tensor:
    """γ Σ_j a_j v_j, the same row for every token; `a` is :func:`linear_weights`.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        v: values, (B, H, N, d).
        gamma: survival of the walk per step, a float or (H,), in (0, 1).
        eps, central: see :func:`linear_weights`.

    Returns:
        (B, H, N, d) in the dtype of ``v``; a view that repeats one row.
    """
    return summary(q, k, v, gamma, eps, central).expand_as(v)


def summary(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float | Tensor,
    eps: float,
    central: Central = "queries",
) -> Tensor:
    """γ aᵀ v, (B, H, 1, d): what every token receives."""
    with torch.autocast(q.device.type, enabled=False):
        weights = linear_weights(q, k, eps, central=central).unsqueeze(-2)
        return (per_head(gamma, weights) * (weights @ v.to(weights.dtype))).to(v.dtype)


def _safe_scales(q: Tensor, k: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scales s of q and t of k that keep squares of q kᵀ / (s t) in range; and ε / (s t).

    q / s, k / t and ε / (s t) have the same Â and the same `a` as q, k and ε.

    Args:
        q, k: (B, H, N, d), contiguous.

    Returns:
        s, t and ε / (s t), each (B, H, 1, 1).
    """
    s, t = _safe_scale(q.detach()), _safe_scale(k.detach())
    return s, t, (eps / (s * t)).clamp_min(torch.finfo(q.dtype).tiny)


def _safe_scale(x: Tensor) -> Tensor:
    """Power of two near the largest magnitude of a head; 1 if that is within 2⁻²⁴ … 2²⁴, or 0.

    (B, H, N, d) to (B, H, 1, 1).
    """
    largest = torch.maximum(x.amax((-2, -1), keepdim=True), -x.amin((-2, -1), keepdim=True))
    unsafe = (largest > 2.0**24) | ((largest > 0) & (largest < 2.0**-24))
    power_of_two = torch.exp2(torch.frexp(largest).exponent.clamp(-126, 127).to(x.dtype))
    return torch.where(unsafe, power_of_two, 1)


def per_head(gamma: float | Tensor, like: Tensor) -> Tensor:
    """γ shaped to multiply (B, H, N, d)."""
    return torch.as_tensor(gamma, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)
