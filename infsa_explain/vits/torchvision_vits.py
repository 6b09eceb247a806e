"""torchvision's Vision Transformers, whose attention is ``torch.nn.MultiheadAttention``."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from . import infsa
from .registry import (
    Forms,
    Layout,
    Reading,
    attention_family,
    convertible,
    dotted_names,
    merge_heads,
    model_family,
    patches,
    split_heads,
)


def queries_keys_values(module: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_q x + b_q and so on, each (B, H, N, d): in_proj holds the three one upon the other.

    Raises:
        ValueError: for a layer that adds keys of its own, or takes tokens before batch.
    """
    plain = module.in_proj_weight is not None and module.bias_k is None
    if not plain or module.add_zero_attn or not module.batch_first:
        raise ValueError(
            "it has kdim, vdim, add_bias_kv or add_zero_attn, or is not batch_first, so that its "
            "keys are not the image's tokens in order"
        )
    qkv = nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, v = (split_heads(part, module.num_heads) for part in qkv.chunk(3, -1))
    return q, k, v


@attention_family(nn.MultiheadAttention, "softmax")
def softmax(module: nn.MultiheadAttention, x: Tensor) -> Reading:
    """q and k from the tokens: PyTorch's fused path never shows them."""
    return reading(module, x)


def reading(module: Any, x: Tensor, gamma: Tensor | None = None) -> Reading:
    """What a layer of either kind makes of its tokens."""
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
    """``MultiheadAttention`` with InfSA: x thrice in, (tokens, None) out."""

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
        infsa.refuse_masks(
            key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal
        )
        heads = self.attend(*queries_keys_values(self, query))  # type: ignore[operator]
        return self.out_proj(merge_heads(heads)), None


class PureMultihead(infsa.Pure, _Multihead):
    """Pure InfSA in place of ``MultiheadAttention``."""


class LinearMultihead(infsa.Linear, _Multihead):
    """Linear-InfSA in place of ``MultiheadAttention``."""


@attention_family(PureMultihead, "pure")
@attention_family(LinearMultihead, "linear")
def _infsa(module: Any, x: Tensor) -> Reading:
    return reading(module, x, module.gamma)


@convertible(lambda m: type(m) in (nn.MultiheadAttention, PureMultihead, LinearMultihead))
def forms(module: nn.MultiheadAttention) -> Forms:
    """The three classes of one layer."""
    return Forms(
        nn.MultiheadAttention, PureMultihead, LinearMultihead, module.num_heads, module.dropout
    )


# ---------------------------------------------------------------- models


def is_torchvision(model: nn.Module) -> bool:
    """Whether a model is torchvision's ``VisionTransformer``."""
    return "torchvision.models.vision_transformer.VisionTransformer" in dotted_names(type(model))


def anew(model: Any) -> nn.Module:
    """A freshly initialised model of the same shape; its classifier starts at zero."""
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
    if not linear:  # the classifier was replaced, by an identity as a rule
        fresh.heads = copy.deepcopy(model.heads)
    return fresh  # type: ignore[no-any-return]


def data(model: Any) -> dict[str, Any]:
    """As the IMAGENET1K_V1 weights: short side to 256, the middle 224 of it; other sizes alike."""
    return {
        "input_size": (3, model.image_size, model.image_size),
        "interpolation": "bilinear",
        "crop_pct": 224 / 256,
    }


def classifies(model: Any) -> bool:
    """Whether a model's ``heads`` hold a layer: people replace them by an identity."""
    return any(isinstance(module, nn.Linear) for module in model.heads.modules())


@model_family(
    "torchvision",
    is_torchvision,
    data,
    classifies,
    fresh=anew,
    drop=lambda model: model.encoder.dropout,
)
def layout(model: Any, images: Tensor) -> Layout:
    """A class token, then square patches."""
    return Layout(patches(images, (model.patch_size, model.patch_size)), 1, True)
