"""Infinite Self-Attention as layers that take the place of timm's ``Attention``.

The functions they compute are in :mod:`infsa_explain.attention.functional`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from .functional import (
    EPS,
    INITIAL_GAMMA,
    linear_infsa,
    linear_weights,
    per_head,
    pure_infsa,
    summary,
    token_graph,
)
from .linear import linear_heads

__all__ = [
    "InfSA",
    "LinearInfSA",
    "PureInfSA",
    "linear_infsa",
    "linear_weights",
    "pure_infsa",
    "token_graph",
]


def query_key_bias(dim: int) -> float:
    """Initial value of the query and key biases: 1.3 · 0.02 · √dim, positive.

    With zero biases, the product of a key and the central query is as often negative as positive.
    The relu then silences whole heads, and no gradient revives them. With a common positive bias
    every head starts alive. The products grow with the width, and so must the bias.
    """
    return 1.3 * 0.02 * math.sqrt(dim)


class InfSA(Attention):
    """Common to both InfSA layers: timm's constructor and state dict, and one γ per head."""

    def __init__(self, dim: int, num_heads: int = 8, *args: Any, **kwargs: Any) -> None:
        super().__init__(dim, num_heads, *args, **kwargs)
        if self.attn_drop.p:
            raise ValueError(
                f"attn_drop must be 0, got {self.attn_drop.p}: InfSA weights do not "
                "sum to 1, so dropping some has no meaning; use proj_drop or drop_path"
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

    def init_with_zero_biases(self, *, xavier: bool = False) -> None:
        """Start query and key biases at 0, as most models do, for comparison with the default.

        Args:
            xavier: also draw the four projections as the released InfSA layer does: uniform by
                Xavier, each on its own, with all biases 0.
        """
        with torch.no_grad():
            if self.qkv.bias is not None:
                self.qkv.bias[: None if xavier else 2 * self.attn_dim] = 0
        if xavier:
            for weight in (*self.qkv.weight.chunk(3), self.proj.weight):
                nn.init.xavier_uniform_(weight)
            if self.proj.bias is not None:
                nn.init.zeros_(self.proj.bias)

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
        """Tokens (B, N, D) to tokens (B, N, D).

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
        """Outputs of the heads, (B, H, N, d), or (B, H, 1, d) if all tokens receive the same."""
        raise NotImplementedError


class PureInfSA(InfSA):
    """Pure InfSA, γ Â v, in timm's ``Attention`` slot.

    Takes timm's constructor arguments, and timm's state dict with ``gamma_logit`` (H,) added.
    Tokens (B, N, D) in and out.
    """

    def heads(self, x: Tensor) -> Tensor:
        """γ Â v, (B, H, N, d)."""
        return pure_infsa(*self.queries_keys_values(x), self.gamma)


class LinearInfSA(InfSA):
    """Linear-InfSA, γ Σ_j a_j v_j, in timm's ``Attention`` slot.

    Takes timm's constructor arguments, and timm's state dict with ``gamma_logit`` (H,) added.
    Tokens (B, N, D) in and out.

    Every token receives the same vector. So it is projected once, and keys and values are never
    formed: see :mod:`infsa_explain.attention.linear`. That needs a plain linear projection and no
    norm of queries or keys. Otherwise (quantised layers, adapters) the textbook form is used.
    """

    def heads(self, x: Tensor) -> Tensor:
        """γ Σ_j a_j v_j, (B, H, 1, d), one row for all tokens."""
        norms = self.q_norm, self.k_norm
        if type(self.qkv) is not nn.Linear or any(type(n) is not nn.Identity for n in norms):
            return summary(*self.queries_keys_values(x), self.gamma, EPS)
        values = linear_heads(x, self.qkv.weight, self.qkv.bias, self.num_heads, EPS)
        with torch.autocast(x.device.type, enabled=False):
            heads: Tensor = per_head(self.gamma, values).squeeze(-1) * values
        return heads[:, :, None].to(x.dtype)
