"""torchvision's Vision Transformers, whose attention is ``torch.nn.MultiheadAttention``."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from . import infsa
from .registry import (
    Family,
    Forms,
    Layout,
    Reading,
    dotted_names,
    merge_heads,
    register_attention,
    register_family,
    register_forms,
    split_heads,
    whole_patches,
)


def queries_keys_values(module: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_q x + b_q, W_k x + b_k and W_v x + b_v, each (B, H, N, d); ``in_proj`` stacks the three.

    Raises:
        ValueError: for a layer that adds further keys, or whose first axis is not the batch.
    """
    stacked = module.in_proj_weight is not None and module.bias_k is None
    if not stacked or module.add_zero_attn or not module.batch_first:
        raise ValueError(
            "it has kdim, vdim, add_bias_kv or add_zero_attn, or is not batch_first, so that its "
            "keys are not the image's tokens in order"
        )
    qkv = nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, v = (split_heads(part, module.num_heads) for part in qkv.chunk(3, -1))
    return q, k, v


@register_attention(nn.MultiheadAttention, "softmax")
def softmax(module: nn.MultiheadAttention, x: Tensor) -> Reading:
    """q and k, computed from the tokens: PyTorch's fused path does not return them."""
    return reading(module, x)


def reading(module: Any, x: Tensor, gamma: Tensor | None = None) -> Reading:
    """The reading of a layer with softmax or InfSA."""
    q, k, v = queries_keys_values(module, x)
    return Reading(
        q,
        k,
        gamma,
        values=lambda: v,
        output=lambda heads: module.out_proj(merge_heads(heads)),
    )


# ---------------------------------------------------------------- the same layer with InfSA


class _Multihead(nn.MultiheadAttention):
    """``MultiheadAttention`` with InfSA. Returns (tokens, None)."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend, with the signature of ``MultiheadAttention.forward``. Masks are refused."""
        infsa.refuse_masks(
            key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal
        )
        heads = self.attend(*queries_keys_values(self, query))  # type: ignore[operator]
        return self.out_proj(merge_heads(heads)), None


class PureMultihead(infsa.Pure, _Multihead):
    """Pure InfSA in place of ``MultiheadAttention``."""


class LinearMultihead(infsa.Linear, _Multihead):
    """Linear-InfSA in place of ``MultiheadAttention``."""


@register_attention(PureMultihead, "pure")
@register_attention(LinearMultihead, "linear")
def infsa_layer(module: Any, x: Tensor) -> Reading:
    """As :func:`softmax`, with γ."""
    return reading(module, x, module.gamma)


@register_forms(lambda m: type(m) in (nn.MultiheadAttention, PureMultihead, LinearMultihead))
def forms(module: nn.MultiheadAttention) -> Forms:
    """``MultiheadAttention``, and the InfSA layers with the same attributes."""
    return Forms(
        nn.MultiheadAttention, PureMultihead, LinearMultihead, module.num_heads, module.dropout
    )


# ---------------------------------------------------------------- models


@register_family
class TorchvisionFamily(Family):
    """torchvision's ``VisionTransformer``."""

    name = "torchvision"

    def matches(self, model: nn.Module) -> bool:
        names = dotted_names(type(model))
        return "torchvision.models.vision_transformer.VisionTransformer" in names

    def layout(self, model: Any, images: Tensor) -> Layout:
        """A class token, then square patches."""
        return Layout(whole_patches(images, (model.patch_size, model.patch_size)), 1, True)

    def data(self, model: Any) -> dict[str, Any]:
        """As the IMAGENET1K_V1 weights: short side to 256, central crop of 224, in proportion."""
        return {
            "input_size": (3, model.image_size, model.image_size),
            "interpolation": "bilinear",
            "crop_pct": 224 / 256,
        }

    def classifies(self, model: Any) -> bool:
        """Whether ``heads`` holds a linear layer: a removed classifier leaves an identity."""
        return any(isinstance(module, nn.Linear) for module in model.heads.modules())

    def fresh(self, model: Any) -> nn.Module:
        """A new model with the same arguments. Its classifier starts at zero."""
        layers = model.encoder.layers
        linear = [module for module in model.heads.modules() if isinstance(module, nn.Linear)]
        fresh: Any = type(model)(
            model.image_size,
            model.patch_size,
            len(layers),
            layers[0].num_heads,
            model.hidden_dim,
            model.mlp_dim,
            model.dropout,
            model.attention_dropout,
            linear[-1].out_features if linear else 1,
            model.representation_size,
            model.norm_layer,
        )
        if not linear:
            fresh.heads = copy.deepcopy(model.heads)
        return fresh  # type: ignore[no-any-return]

    def drop(self, model: Any) -> nn.Module:
        return model.encoder.dropout  # type: ignore[no-any-return]
