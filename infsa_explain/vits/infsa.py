"""What makes an attention layer InfSA: γ, and what it does with queries, keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention.functional import linear_infsa, pure_infsa


class InfSA:
    """γ of a layer; one of :class:`Pure` and :class:`Linear` is mixed into a layer's class."""

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
    """Raise if any argument of these is given: InfSA normalises over the whole graph."""
    given = [name for name, mask in masks.items() if mask is not None and mask is not False]
    if given:
        raise ValueError(f"InfSA takes no attention mask, got {', '.join(given)}")
