"""Infinite Self-Attention: functions, and layers that fit timm's ``Attention`` slot.

Softmax attention makes every token's weights sum to one. InfSA keeps the raw non-negative
affinities and normalises the whole graph by one number, its Frobenius norm, so that the graph
can be read as the transitions of a walk that dies out:

    A+ = relu(q kᵀ / d)          affinities, row i attends to column j
    Â  = A+ / (‖A+‖_F + ε)       the token graph; spectral radius at most 1
    out = γ Â v                  Pure InfSA, one step of the walk

Linear-InfSA replaces Â by one row, an O(N) estimate of its left Perron vector, which every
token then receives. Source: Infinite Self-Attention, arXiv 2603.00175, and its released code
(``rho`` there is γ here).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from .onednn import projection
from .streamed import at_least_float32, chunks, linear_heads
from .tiled import affinity_product

__all__ = [
    "LinearInfSA",
    "PureInfSA",
    "linear_infsa",
    "linear_weights",
    "pure_infsa",
    "token_graph",
]

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
        s, t, eps_st = _scales(q, k, eps)
        graph = affinity(q / s, k / t)
        return graph / (frobenius_norm(graph)[..., None, None] + eps_st)


def frobenius_norm(graph: Tensor) -> Tensor:
    """‖graph‖_F of (..., N, N), in the graph's dtype, right to its last digits at any N.

    Row by row, then over rows in float64: one float32 sum over N² terms drifts by 1e-4 at
    N = 4,097.
    """
    rows = torch.linalg.vector_norm(graph, dim=-1)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return norm.to(graph.dtype)


def pure_infsa(q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, eps: float = EPS) -> Tensor:
    """γ Â v: one step of the absorbing walk, as γ (A+ v) / (‖A+‖_F + ε).

    Memory is linear in N, forward and backward: see :mod:`infsa_explain.tiled`.

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
        s, t, eps_st = _scales(queries, keys, eps)
        scaled = queries / (s * q.shape[-1]), keys / t, v.to(queries.dtype)
        product, norm = affinity_product(*(x.flatten(0, 1) for x in scaled))
        product, norm = (x.view(*q.shape[:2], *x.shape[1:]) for x in (product, norm))
        scale = _per_head(gamma, product) / (norm[..., None, None] + eps_st)
        return (scale * product).to(v.dtype)


def linear_weights(q: Tensor, k: Tensor, eps: float = EPS, steps: int = 1) -> Tensor:
    """`a`: the importance of every token to the central query, an O(N) stand-in for Perron.

    e_i = ‖q_i‖₂, w = e / Σe, q̄ = Σ w_i q_i, a = relu(k q̄ / d) / (Σ relu(k q̄ / d) + ε).

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        eps: keeps a dead head at zero.
        steps: 1 is Linear-InfSA's. Each step more averages the queries anew, q̄ ← Σ a_i q_i: power
            iteration on Âᵀ with the relu taken after the sum over tokens, not before. Its fixed
            point is the left Perron vector only where no relu cuts.

    Returns:
        (B, H, N), non-negative; sums to 1, or is all zero in a dead head, where no key has a
        positive product with the central query. γ is not in it.

    >>> q = torch.ones(1, 1, 3, 2)
    >>> linear_weights(q, torch.tensor([[[[1., 1], [2, 2], [-1, 0]]]]))[0, 0]
    tensor([0.3333, 0.6667, 0.0000])
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k = (at_least_float32(x).contiguous() for x in (q, k))
        # Where all queries are zero the mean of them is zero too, whatever the weights.
        energy = _norms(q)
        weight = energy / energy.sum(-2, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        for _ in range(steps):
            weight = key_weights(weight, q, k, eps)
        weights: Tensor = weight.squeeze(-1)
        return weights


def key_weights(weight: Tensor, q: Tensor, k: Tensor, eps: float = EPS) -> Tensor:
    """relu(k q̄ / d) scaled to sum 1, for the query q̄ = Σ weight_i q_i: (B, H, N, 1), as weight."""
    s, t, eps_st = _scales(q, k, eps)
    pairs = zip(chunks(weight, 2), chunks(q, 2), strict=True)
    central_query = torch.stack([(w * x).sum(-2, keepdim=True) for w, x in pairs]).sum(0)
    scores = torch.relu(k @ (central_query / (s * q.shape[-1])).transpose(-2, -1)) / t
    return scores / (scores.sum(-2, keepdim=True) + eps_st)


def _norms(q: Tensor) -> Tensor:
    """‖q_i‖₂ up to a factor a head, (B, H, N, 1), some tokens at a time."""
    s = _out_of_range(q.detach())
    norms = [torch.linalg.vector_norm(x / s, dim=-1, keepdim=True) for x in chunks(q, 2)]
    return torch.cat(norms, dim=2)


def linear_infsa(
    q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, eps: float = EPS
) -> Tensor:
    """γ Σ_j a_j v_j, the same for every token, with ``a`` from :func:`linear_weights`.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        v: values, (B, H, N, d).
        gamma: survival of the walk per step, a float or (H,), in (0, 1).
        eps: see :func:`linear_weights`.

    Returns:
        (B, H, N, d) in the dtype of ``v``; a view that repeats one row.
    """
    return _summary(q, k, v, gamma, eps).expand_as(v)


def _summary(q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, eps: float) -> Tensor:
    """γ aᵀ v, (B, H, 1, d): what every token receives."""
    with torch.autocast(q.device.type, enabled=False):
        weights = linear_weights(q, k, eps).unsqueeze(-2)
        return (_per_head(gamma, weights) * (weights @ v.to(weights.dtype))).to(v.dtype)


def _scales(q: Tensor, k: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """s, t and ε / (s t), each (B, H, 1, 1), such that squares of q kᵀ / (s t) stay in range.

    Â and `a` of q / s, k / t and ε / (s t) are those of q, k and ε. q and k are contiguous.
    """
    s, t = _out_of_range(q.detach()), _out_of_range(k.detach())
    return s, t, (eps / (s * t)).clamp_min(torch.finfo(q.dtype).tiny)


def _out_of_range(x: Tensor) -> Tensor:
    """1; for heads beyond 2⁻²⁴ … 2²⁴ the power of two that their largest number is about.

    (B, H, N, d) to (B, H, 1, 1).
    """
    largest = torch.maximum(x.amax((-2, -1), keepdim=True), -x.amin((-2, -1), keepdim=True))
    far = (largest > 2.0**24) | ((largest > 0) & (largest < 2.0**-24))
    power = torch.exp2(torch.frexp(largest).exponent.clamp(-126, 127).to(x.dtype))
    return torch.where(far, power, 1)


def _per_head(gamma: float | Tensor, like: Tensor) -> Tensor:
    """γ shaped to multiply (B, H, N, d)."""
    return torch.as_tensor(gamma, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)


def query_key_bias(dim: int) -> float:
    """The positive constant at which query and key biases start, 1.3 · 0.02 · √dim.

    With biases at zero a product of a key and the central query is as often negative as
    positive, relu silences whole heads, and no gradient brings them back. A common positive
    constant starts every head alive; it must grow with the width as the products do.
    """
    return 1.3 * 0.02 * math.sqrt(dim)


@torch.no_grad()
def queries_keys(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """q and k of tokens ``x`` (B, N, D), each (B, H, N, d), after any norm, without gradients.

    Without values, and chunk by chunk, so that nothing else as large as q and k takes memory.
    """
    if type(layer.qkv) is not nn.Linear:  # quantised, or with an adapter
        q, k, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).transpose(1, 3).unbind(2)
        return layer.q_norm(q), layer.k_norm(k)
    q, k = x.new_empty(2, len(x), layer.num_heads, x.shape[1], layer.head_dim)
    bias = layer.qkv.bias
    for i, (out, norm) in enumerate(((q, layer.q_norm), (k, layer.k_norm))):
        weight_i = layer.qkv.weight.chunk(3)[i]
        bias_i = None if bias is None else bias.chunk(3)[i]
        for some, tokens in zip(chunks(out, 2), chunks(x), strict=True):
            heads = projection(tokens, weight_i, bias_i).view(*tokens.shape[:2], *out.shape[1::2])
            some.copy_(norm(heads.transpose(1, 2)))
    return q, k


class _InfSA(Attention):
    """What the two InfSA layers share: timm's constructor and state dict, and γ per head."""

    def __init__(self, dim: int, num_heads: int = 8, *args: Any, **kwargs: Any) -> None:
        super().__init__(dim, num_heads, *args, **kwargs)
        if self.attn_drop.p:
            raise ValueError(
                f"attn_drop must be 0, got {self.attn_drop.p}: InfSA weights are no "
                "distribution to drop from; use proj_drop or drop_path"
            )
        self.gamma_logit = nn.Parameter(
            torch.empty(num_heads, device=self.qkv.weight.device, dtype=self.qkv.weight.dtype)
        )
        self.init_weights()

    def init_weights(self) -> None:
        """Start γ at 0.95 and query and key biases at :func:`query_key_bias`."""
        nn.init.constant_(self.gamma_logit, math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA)))
        if self.qkv.bias is not None:
            with torch.no_grad():
                self.qkv.bias[: 2 * self.attn_dim] = query_key_bias(self.qkv.in_features)

    @property
    def gamma(self) -> Tensor:
        """γ = sigmoid(gamma_logit), (H,)."""
        return torch.sigmoid(self.gamma_logit)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of tokens ``x`` (B, N, D), each (B, H, N, d), after any q/k norm."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: tokens (B, N, D) to (B, N, D).

        Raises:
            ValueError: if a mask is given; the paper defines none.
        """
        if attn_mask is not None or is_causal:
            raise ValueError(
                f"{type(self).__name__} takes no attention mask (attn_mask, is_causal): "
                "InfSA normalises over the whole graph"
            )
        heads = self.heads(x)  # (B, H, N or 1, d)
        out = self.norm(heads.transpose(1, 2).flatten(2))
        gate = getattr(self, "gate", None)
        if gate is not None:
            out = out * gate(x).sigmoid()
        tokens: Tensor = self.proj_drop(self.proj(out).expand(-1, x.shape[1], -1))
        return tokens

    def heads(self, x: Tensor) -> Tensor:
        """What every head passes on: (B, H, N, d), or (B, H, 1, d), one row for all tokens."""
        raise NotImplementedError


class PureInfSA(_InfSA):
    """Pure InfSA, γ Â v, in timm's ``Attention`` slot.

    Takes timm's constructor arguments, and timm's state dict with ``gamma_logit`` (H,) added.
    Tokens (B, N, D) in and out.
    """

    def heads(self, x: Tensor) -> Tensor:
        """γ Â v, (B, H, N, d)."""
        return pure_infsa(*self.queries_keys_values(x), self.gamma)


class LinearInfSA(_InfSA):
    """Linear-InfSA, γ Σ_j a_j v_j, in timm's ``Attention`` slot.

    Takes timm's constructor arguments, and timm's state dict with ``gamma_logit`` (H,) added.
    Tokens (B, N, D) in and out.

    Every token receives the same vector, so it is projected once, and neither keys nor values are
    formed: see :mod:`infsa_explain.streamed`. With a norm on queries or keys, or a projection that
    is no plain one (quantised, or with an adapter), that algebra fails, and the textbook form is
    used.
    """

    def heads(self, x: Tensor) -> Tensor:
        """γ Σ_j a_j v_j, (B, H, 1, d), one row for all tokens."""
        norms = self.q_norm, self.k_norm
        if type(self.qkv) is not nn.Linear or any(type(n) is not nn.Identity for n in norms):
            return _summary(*self.queries_keys_values(x), self.gamma, EPS)
        values = linear_heads(x, self.qkv.weight, self.qkv.bias, self.num_heads, EPS)
        with torch.autocast(x.device.type, enabled=False):
            heads: Tensor = _per_head(self.gamma, values).squeeze(-1) * values
        return heads[:, :, None].to(x.dtype)
