"""Attention mechanisms that InfSA is compared with, each in timm's ``Attention`` slot.

A mechanism is a function of queries, keys and values, each (B, H, N, d), between timm's
projections. The Vision Transformer around it is the same for all mechanisms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, scaled_dot_product_attention

from ..attention.functional import EPS, linear_infsa, token_graph
from ..attention.layers import LinearInfSA, PureInfSA

__all__ = [
    "FUSED",
    "MECHANISMS",
    "FusedSoftmax",
    "Linformer",
    "MaterialisedSoftmax",
    "Mechanism",
    "Nystromformer",
    "Performer",
    "ReluLinear",
    "TextbookLinearInfSA",
    "TextbookPureInfSA",
    "softmax_weights",
]


def softmax_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) over the keys.

    Args:
        q: queries (..., N, d).
        k: keys (..., M, d).

    Returns:
        (..., N, M); rows sum to 1.
    """
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)


class Mixing(Attention):
    """timm's ``Attention`` with :meth:`mix` instead of softmax attention."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention output (B, H, N, d) of queries, keys and values (B, H, N, d)."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: tokens (B, N, D) to (B, N, D).

        Raises:
            ValueError: if a mask is passed; the benchmark uses none.
        """
        if attn_mask is not None or is_causal:
            raise ValueError(
                f"{type(self).__name__} takes no attention mask (attn_mask, is_causal)"
            )
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = self.mix(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)
        tokens: Tensor = self.proj_drop(self.proj(self.norm(out)))
        return tokens


class MaterialisedSoftmax(Mixing):
    """Softmax attention with its N×N weights in memory (Vaswani et al. 2017, arXiv 1706.03762)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q kᵀ / √d) v."""
        return softmax_weights(q, k) @ v


class FusedSoftmax(Mixing):
    """Softmax attention in tiles (FlashAttention, Dao et al. 2022, arXiv 2205.14135)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q kᵀ / √d) v, by PyTorch."""
        return scaled_dot_product_attention(q, k, v)


class Linformer(Mixing):
    """Softmax over keys and values projected from N to at most ``rank`` (arXiv 2006.04768).

    Wang et al. 2020, with two projections that all heads of a layer share. The projections depend
    on N, so a subclass sets ``tokens``.
    """

    tokens: int
    rank = 256

    def __init__(self, dim: int, num_heads: int = 8, *args: Any, **kwargs: Any) -> None:
        super().__init__(dim, num_heads, *args, **kwargs)
        rank = min(self.rank, self.tokens)
        self.key_projection = nn.Parameter(torch.randn(rank, self.tokens) / math.sqrt(rank))
        self.value_projection = nn.Parameter(torch.randn(rank, self.tokens) / math.sqrt(rank))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q (E k)ᵀ / √d) (F v)."""
        return softmax_weights(q, self.key_projection @ k) @ (self.value_projection @ v)


class Performer(Mixing):
    """Softmax by positive orthogonal random features (FAVOR+, arXiv 2009.14794).

    Choromanski et al. 2021: exp(q·k / √d) = E φ(q)·φ(k) over ω ~ N(0, I), with
    φ(x) = exp(ω·x' − ‖x'‖² / 2) and x' = x / d^¼. Features: ``features``, by default d ln d.
    """

    features: int | None = None
    omega: Tensor

    def __init__(self, dim: int, num_heads: int = 8, *args: Any, **kwargs: Any) -> None:
        super().__init__(dim, num_heads, *args, **kwargs)
        d = self.head_dim
        count = self.features or max(1, int(d * math.log(d)))
        q, r = torch.linalg.qr(torch.randn(math.ceil(count / d), d, d))
        blocks = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # makes directions uniform
        lengths = torch.linalg.vector_norm(torch.randn(count, d), dim=1, keepdim=True)
        self.register_buffer("omega", lengths * blocks.flatten(0, 1)[:count])

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """φ(q) (φ(k)ᵀ v) over its row sums."""
        q, k = self._exponents(q), self._exponents(k)
        # A common factor of one query's features, or of all keys' features, cancels.
        q = torch.exp(q - q.amax(-1, keepdim=True))
        k = torch.exp(k - k.amax((-2, -1), keepdim=True))
        return _normalised(q, k, v, torch.finfo(q.dtype).tiny)

    def _exponents(self, x: Tensor) -> Tensor:
        """ω·x' − ‖x'‖² / 2, (B, H, N, features)."""
        x = x / x.shape[-1] ** 0.25
        return x @ self.omega.t().to(x.dtype) - x.square().sum(-1, keepdim=True) / 2


class Nystromformer(Mixing):
    """Softmax by the Nyström method on ``landmarks`` segment means (arXiv 2102.03902).

    Xiong et al. 2021, without the optional convolution of the values. Segments are those of
    ``adaptive_avg_pool1d``. The pseudo-inverse uses ``iterations`` steps of equation 13.
    """

    landmarks = 64
    iterations = 6

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ (softmax(q̃ kᵀ) v), scores over √d."""
        q_means, k_means = self._means(q), self._means(k)
        inverse = self._pseudo_inverse(softmax_weights(q_means, k_means))
        return softmax_weights(q, k_means) @ (inverse @ (softmax_weights(q_means, k) @ v))

    def _means(self, x: Tensor) -> Tensor:
        """Means of segments, (B, H, landmarks, d)."""
        count = min(self.landmarks, x.shape[-2])
        means = adaptive_avg_pool1d(x.transpose(-2, -1).flatten(0, 1), count)
        return means.transpose(-2, -1).reshape(*x.shape[:2], count, -1)

    def _pseudo_inverse(self, a: Tensor) -> Tensor:
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        # Row sums are 1, so ‖A‖₁ ‖A‖∞ is the largest column sum.
        z = a.transpose(-2, -1) / a.sum(-2).amax(-1)[..., None, None]
        for _ in range(self.iterations):
            az = a @ z
            z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
        return z


class ReluLinear(Mixing):
    """Linear attention with φ = relu (Cai et al. 2023, EfficientViT, arXiv 2205.14756)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """φ(q) (φ(k)ᵀ v) over its row sums."""
        return _normalised(torch.relu(q), torch.relu(k), v, EPS)


def _normalised(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """q (kᵀ v) / (q Σ k + ε), for non-negative features of queries and keys."""
    sums = q @ k.sum(-2, keepdim=True).transpose(-2, -1)
    return q @ (k.transpose(-2, -1) @ v) / (sums + eps)


class TextbookPureInfSA(PureInfSA):
    """Pure InfSA with its N×N graph in memory."""

    def heads(self, x: Tensor) -> Tensor:
        """γ Â v, (B, H, N, d)."""
        q, k, v = self.queries_keys_values(x)
        graph = token_graph(q, k)
        return self.gamma.view(-1, 1, 1) * (graph.to(v.dtype) @ v)


class TextbookLinearInfSA(LinearInfSA):
    """Linear-InfSA that computes keys and values, and repeats its single row before projection."""

    def heads(self, x: Tensor) -> Tensor:
        """γ Σ_j a_j v_j, (B, H, N, d), the same row for every token."""
        return linear_infsa(*self.queries_keys_values(x), self.gamma)


@dataclass(frozen=True)
class Mechanism:
    """One attention mechanism of the benchmark.

    Attributes:
        name: on the command line.
        layer: the class for timm's ``Attention`` slot.
        counted: a class with the same arithmetic in operators that PyTorch's counter supports.
        matrices: whether N×N matrices are in memory, according to the code.
    """

    name: str
    layer: type[Attention]
    counted: type[Attention]
    matrices: bool = False


#: The reference that the others are compared with.
FUSED = "softmax-fused"
MECHANISMS: dict[str, Mechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        Mechanism(FUSED, FusedSoftmax, MaterialisedSoftmax),
        Mechanism("softmax", MaterialisedSoftmax, MaterialisedSoftmax, matrices=True),
        Mechanism("linear", LinearInfSA, LinearInfSA),
        Mechanism("linear-textbook", TextbookLinearInfSA, TextbookLinearInfSA),
        Mechanism("pure", PureInfSA, TextbookPureInfSA),
        Mechanism("pure-textbook", TextbookPureInfSA, TextbookPureInfSA, matrices=True),
        Mechanism("linformer", Linformer, Linformer),
        Mechanism("performer", Performer, Performer),
        Mechanism("nystromformer", Nystromformer, Nystromformer),
        Mechanism("relu-linear", ReluLinear, ReluLinear),
    )
}
