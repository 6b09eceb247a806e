"""Mixins that make an attention layer InfSA: γ, and the operation on queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention.functional import linear_infsa, pure_infsa


class InfSA:
    """γ of a layer. Use :class:`Pure` or :class:`Linear`."""

    gamma_logit: nn.Parameter

    @property
    def gamma(self) -> Tensor:
        """γ = sigmoid(gamma_logit), (H,)."""
        return torch.sigmoid(self.gamma_logit)


class Pure(InfSA):
    """γ Â v."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, N, d) from q, k and v of that shape."""
        return pure_infsa(q, k, v, self.gamma)


class Linear(InfSA):
    """γ Σ_j a_j v_j for every token."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, N, d) from q, k and v of that shape."""
        return linear_infsa(q, k, v, self.gamma)


def refuse_masks(**masks: Any) -> None:
    """Refuse masks by name: InfSA normalises over the whole graph.

    Raises:
        ValueError: if one of them is neither None nor False.
    """
    present = [name for name, mask in masks.items() if mask is not None and mask is not False]
    if present:
        raise ValueError(f"InfSA takes no attention mask, got {', '.join(present)}")
