"""timm's Vision Transformers, and InfViT, whose layers take the place of timm's.

Classes of timm are recognised by their names, so that this module does not import timm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.linear import chunks
from ..attention.onednn import projection
from .refused import BIAS
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

ATTENTION = "timm.layers.attention.Attention"
PURE, LINEAR = (
    "infsa_explain.attention.layers.PureInfSA",
    "infsa_explain.attention.layers.LinearInfSA",
)

# ---------------------------------------------------------------- attention


@register_attention(PURE, "pure")
@register_attention(LINEAR, "linear")
def infsa_layer(module: Any, x: Tensor) -> Reading:
    """q and k of :mod:`infsa_explain.attention.layers`."""
    q, k = queries_keys(module, x)
    values = lambda: module.queries_keys_values(x)[2]  # noqa: E731
    return Reading(q, k, module.gamma, values=values, output=output(module, x))


@register_attention(ATTENTION, "softmax")
def softmax(module: Any, x: Tensor) -> Reading:
    """q_norm(W_q x), k_norm(W_k x)."""
    q, k = queries_keys(module, x)
    values = lambda: split_heads(module.qkv(x).chunk(3, -1)[2], module.num_heads)  # noqa: E731
    return Reading(q, k, scale=module.scale, values=values, output=output(module, x))


@torch.no_grad()
def queries_keys(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """q and k of tokens ``x`` (B, N, D), each (B, H, N, d), after any norm, without gradients.

    Values are not computed, and tokens are projected in chunks, so that no other tensor of the
    size of q and k is allocated.
    """
    if type(layer.qkv) is not nn.Linear:  # quantised, or with an adapter
        q, k, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).transpose(1, 3).unbind(2)
        return layer.q_norm(q), layer.k_norm(k)
    q, k = x.new_empty(2, len(x), layer.num_heads, x.shape[1], layer.head_dim)
    bias = layer.qkv.bias
    for i, (out, norm) in enumerate(((q, layer.q_norm), (k, layer.k_norm))):
        weight_i = layer.qkv.weight.chunk(3)[i]
        bias_i = None if bias is None else bias.chunk(3)[i]
        for target, tokens in zip(chunks(out, 2), chunks(x), strict=True):
            heads = projection(tokens, weight_i, bias_i).view(*tokens.shape[:2], *out.shape[1::2])
            target.copy_(norm(heads.transpose(1, 2)))
    return q, k


def output(module: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Norm, gate and projection of the heads. Some layers have no norm or no gate."""

    def project(heads: Tensor) -> Tensor:
        out = getattr(module, "norm", nn.Identity())(merge_heads(heads))
        gate = getattr(module, "gate", None)
        tokens: Tensor = module.proj(out if gate is None else out * gate(x).sigmoid())
        return tokens

    return project


@register_attention("timm.models.vision_transformer.ParallelScalingBlock", "softmax")
def parallel_block(module: Any, x: Tensor) -> Reading:
    """As :func:`softmax`, for a block with one projection for queries, keys, values and MLP."""
    _, *qkv = module.in_proj(module.in_norm(x)).split(module.in_split, dim=-1)
    q, k, v = (split_heads(part, module.num_heads) for part in qkv)
    # If one matrix projects heads and MLP, its first columns belong to the heads.
    project = module.attn_out_proj or module.out_proj

    def attended(heads: Tensor) -> Tensor:
        merged = merge_heads(heads)
        out = nn.functional.linear(merged, project.weight[:, : merged.shape[-1]])
        tokens: Tensor = module.ls(out)
        return tokens

    return Reading(
        module.q_norm(q),
        module.k_norm(k),
        scale=module.scale,
        values=lambda: v,
        output=attended,
    )


@register_attention("timm.layers.attention.AttentionRope", "softmax", inputs=("rope",))
@register_attention("timm.models.eva.EvaAttention", "softmax", inputs=("rope",))
def rotary(module: Any, x: Tensor, rope: Tensor | None = None) -> Reading:
    """R q_norm(W_q x), R k_norm(W_k x), with R the rotation by the patch's position."""
    fused = module.q_proj is None
    q, k, v = _biased(module, x) if fused else (module.q_proj(x), module.k_proj(x), None)
    groups = getattr(module, "num_kv_groups", 1)  # heads of queries per head of keys and values
    q = module.q_norm(split_heads(q, module.num_heads))
    k = module.k_norm(split_heads(k, module.num_heads // groups))
    if rope is not None:
        q, k = (_rotate(module, part, rope) for part in (q, k))

    def values() -> Tensor:
        heads = split_heads(module.v_proj(x) if v is None else v, module.num_heads // groups)
        return heads.repeat_interleave(groups, dim=1)

    return Reading(
        q,
        k.repeat_interleave(groups, dim=1),
        scale=module.scale,
        values=values,
        output=output(module, x),
    )


@register_attention("timm.models.beit.Attention", "softmax")
def beit_attention(module: Any, x: Tensor) -> Reading:
    """W_q x, W_k x, of a layer without a bias of relative position."""
    if module.relative_position_bias_table is not None:
        raise ValueError(f"it {BIAS}")
    q, k, v = (split_heads(part, module.num_heads) for part in _biased(module, x))
    return Reading(q, k, scale=module.scale, values=lambda: v, output=output(module, x))


def _biased(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_q x + b_q, and the same for keys and values. Some layers store their biases separately."""
    qkv = module.qkv(x)
    if getattr(module, "q_bias", None) is not None:
        qkv = qkv + torch.cat([module.q_bias, module.k_bias, module.v_bias])
    q, k, v = qkv.chunk(3, -1)
    return q, k, v


def _rotate(module: Any, x: Tensor, rope: Tensor) -> Tensor:
    """x (B, H, N, d) with its patches rotated and its prefix tokens unchanged."""
    from timm.layers.pos_embed_sincos import apply_rot_embed_cat

    prefix, patches = x[:, :, : module.num_prefix_tokens], x[:, :, module.num_prefix_tokens :]
    rotated = apply_rot_embed_cat(patches, rope, half=getattr(module, "rotate_half", False))
    return torch.cat([prefix, rotated.to(x.dtype)], dim=2)


@register_forms(lambda module: dotted_names(type(module))[0] in (ATTENTION, PURE, LINEAR))
def forms(module: Any) -> Forms:
    """timm's ``Attention``, and the InfSA layers with the same attributes."""
    from timm.layers.attention import Attention

    from ..attention.layers import LinearInfSA, PureInfSA

    return Forms(Attention, PureInfSA, LinearInfSA, module.num_heads, module.attn_drop.p)


# ---------------------------------------------------------------- models


@register_family
class TimmFamily(Family):
    """Models with timm's patch embedding."""

    name = "timm"

    def matches(self, model: nn.Module) -> bool:
        return patch_embedding(model) is not None

    def layout(self, model: Any, images: Tensor) -> Layout:
        """Prefix tokens and pooling as timm's models name them."""
        embedding = patch_embedding(model)
        gh, gw = embedding.dynamic_feat_size(tuple(images.shape[-2:]))  # some pad
        if not gh or not gw:
            whole_patches(images, embedding.feat_ratio(as_scalar=False))
        prefix = int(getattr(model, "num_prefix_tokens", 0))
        pooled_by_token = prefix > 0 and getattr(model, "global_pool", "token") == "token"
        return Layout((int(gh), int(gw)), prefix, pooled_by_token)

    def data(self, model: Any) -> dict[str, Any]:
        """The input size that the model was built with. The rest is in its ``pretrained_cfg``."""
        size = getattr(getattr(model, "patch_embed", None), "img_size", None)
        return {} if size is None else {"input_size": (3, *size)}

    def classifies(self, model: Any) -> bool:
        """Whether a model has classes, and its classifier was not replaced by an identity."""
        if getattr(model, "num_classes", None) == 0:
            return False
        classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
        return not isinstance(classifier, nn.Identity)

    def drop(self, model: Any) -> nn.Module:
        """Where ``VisionTransformer`` drops patches itself, after the position embedding.

        Other models, which rotate queries and keys by position, would rotate by wrong positions.
        """
        if "timm.models.vision_transformer.VisionTransformer" in dotted_names(type(model)):
            return model.patch_drop  # type: ignore[no-any-return]
        return super().drop(model)


def patch_embedding(model: nn.Module) -> Any:
    """timm's patch embedding of a model, or None."""
    embedding = getattr(model, "patch_embed", None) or getattr(model, "embeds", None)
    return embedding if hasattr(embedding, "dynamic_feat_size") else None
