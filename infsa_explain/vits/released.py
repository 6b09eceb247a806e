"""The layers that the authors of InfSA released, recognised by their attributes.

So a model that was converted and trained with their package can be read without that package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .registry import Reading, merge_heads, register_attention, split_heads

ATTRIBUTES = ("q_proj", "k_proj", "v_proj", "out_proj", "rho_logit", "variant", "num_heads")


def released_pure_infsa(module: nn.Module) -> bool:
    """Whether a module is the released Pure InfSA."""
    return _variant(module).startswith("pure")


def released_linear_infsa(module: nn.Module) -> bool:
    """Whether a module is the released Linear-InfSA."""
    return _variant(module).startswith("linear")


def _variant(module: Any) -> str:
    return str(module.variant) if all(hasattr(module, name) for name in ATTRIBUTES) else ""


@register_attention(released_pure_infsa, "pure")
@register_attention(released_linear_infsa, "linear")
def queries_keys(module: Any, x: Tensor) -> Reading:
    """W_q x and W_k x; γ = sigmoid(rho_logit), one for all heads or one per head."""
    q, k = (split_heads(linear(x), module.num_heads) for linear in (module.q_proj, module.k_proj))
    gamma = torch.sigmoid(module.rho_logit).flatten().expand(module.num_heads)
    return Reading(
        q,
        k,
        gamma,
        values=lambda: split_heads(module.v_proj(x), module.num_heads),
        output=lambda heads: module.out_proj(merge_heads(heads)),
    )
