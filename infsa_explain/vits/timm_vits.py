"""timm's Vision Transformers, and our own, which stand in their slots; named, not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.linear import chunks
from ..attention.onednn import projection
from .refused import BIAS
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

ATTENTION = "timm.layers.attention.Attention"
PURE, LINEAR = (
    "infsa_explain.attention.layers.PureInfSA",
    "infsa_explain.attention.layers.LinearInfSA",
)

# ---------------------------------------------------------------- attention


@attention_family(PURE, "pure")
@attention_family(LINEAR, "linear")
def our_own(module: Any, x: Tensor) -> Reading:
    """q and k of our own layers."""
    q, k = queries_keys(module, x)
    values = lambda: module.queries_keys_values(x)[2]  # noqa: E731
    return Reading(q, k, module.gamma, values=values, output=output(module, x))


@attention_family(ATTENTION, "softmax")
def softmax(module: Any, x: Tensor) -> Reading:
    """q_norm(W_q x), k_norm(W_k x)."""
    q, k = queries_keys(module, x)
    values = lambda: split_heads(module.qkv(x).chunk(3, -1)[2], module.num_heads)  # noqa: E731
    return Reading(q, k, scale=module.scale, values=values, output=output(module, x))


@torch.no_grad()
def queries_keys(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
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


def output(module: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Norm, gate and projection of the heads, of layers that may be without the first two."""

    def project(heads: Tensor) -> Tensor:
        out = getattr(module, "norm", nn.Identity())(merge_heads(heads))
        gate = getattr(module, "gate", None)
        tokens: Tensor = module.proj(out if gate is None else out * gate(x).sigmoid())
        return tokens

    return project


@attention_family("timm.models.vision_transformer.ParallelScalingBlock", "softmax")
def parallel_block(module: Any, x: Tensor) -> Reading:
    """As :func:`softmax`, of a block that projects queries, keys, values and MLP at once."""
    _, *qkv = module.in_proj(module.in_norm(x)).split(module.in_split, dim=-1)
    q, k, v = (split_heads(part, module.num_heads) for part in qkv)
    # Where heads and MLP are projected by one matrix, its first columns are the heads'.
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


@attention_family("timm.layers.attention.AttentionRope", "softmax", inputs=("rope",))
@attention_family("timm.models.eva.EvaAttention", "softmax", inputs=("rope",))
def rotary(module: Any, x: Tensor, rope: Tensor | None = None) -> Reading:
    """R q_norm(W_q x), R k_norm(W_k x), with R the rotation of each patch's place."""
    fused = module.q_proj is None
    q, k, v = _biased(module, x) if fused else (module.q_proj(x), module.k_proj(x), None)
    groups = getattr(module, "num_kv_groups", 1)  # queries' heads that share one of keys, values
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


@attention_family("timm.models.beit.Attention", "softmax")
def beit_attention(module: Any, x: Tensor) -> Reading:
    """W_q x, W_k x, where there is no bias of relative position."""
    if module.relative_position_bias_table is not None:
        raise ValueError(f"it {BIAS}")
    q, k, v = (split_heads(part, module.num_heads) for part in _biased(module, x))
    return Reading(q, k, scale=module.scale, values=lambda: v, output=output(module, x))


def _biased(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_q x + b_q and so on for keys and values, of layers that may keep their biases apart."""
    qkv = module.qkv(x)
    if getattr(module, "q_bias", None) is not None:
        qkv = qkv + torch.cat([module.q_bias, module.k_bias, module.v_bias])
    q, k, v = qkv.chunk(3, -1)
    return q, k, v


def _rotate(module: Any, x: Tensor, rope: Tensor) -> Tensor:
    """The patches of x (B, H, N, d) rotated, its prefix tokens as they are."""
    from timm.layers.pos_embed_sincos import apply_rot_embed_cat

    prefix, rest = x[:, :, : module.num_prefix_tokens], x[:, :, module.num_prefix_tokens :]
    turned = apply_rot_embed_cat(rest, rope, half=getattr(module, "rotate_half", False))
    return torch.cat([prefix, turned.to(x.dtype)], dim=2)


@convertible(lambda module: dotted_names(type(module))[0] in (ATTENTION, PURE, LINEAR))
def forms(module: Any) -> Forms:
    """InfSA layers are timm's ``Attention`` but for γ and what they do with q, k and v."""
    from timm.layers.attention import Attention

    from ..attention.layers import LinearInfSA, PureInfSA

    return Forms(Attention, PureInfSA, LinearInfSA, module.num_heads, module.attn_drop.p)


# ---------------------------------------------------------------- models


def embedding(model: nn.Module) -> Any:
    """timm's patch embedding, or None."""
    embed = getattr(model, "patch_embed", None) or getattr(model, "embeds", None)
    return embed if hasattr(embed, "dynamic_feat_size") else None


def data(model: nn.Module) -> dict[str, Any]:
    """The input size that the model was built with; the rest is in its ``pretrained_cfg``."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return {} if size is None else {"input_size": (3, *size)}


def classifies(model: Any) -> bool:
    """Whether a model has classes, and its classifier was not replaced by an identity."""
    if getattr(model, "num_classes", None) == 0:
        return False
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    return not isinstance(classifier, nn.Identity)


def patch_drop(model: Any) -> nn.Module | None:
    """Where timm's ``VisionTransformer`` drops patches, behind the position embedding.

    Models that rotate queries and keys by position would lose the places of the others.
    """
    plain = "timm.models.vision_transformer.VisionTransformer" in dotted_names(type(model))
    module: nn.Module | None = model.patch_drop if plain else None
    return module


@model_family(
    "timm",
    lambda model: embedding(model) is not None,
    data,
    classifies,
    drop=patch_drop,
)
def layout(model: Any, images: Tensor) -> Layout:
    """Prefix tokens and pooling as timm's models name them."""
    embed = embedding(model)
    gh, gw = embed.dynamic_feat_size(tuple(images.shape[-2:]))  # some pad
    if not gh or not gw:
        patches(images, embed.feat_ratio(as_scalar=False))
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    pooled_by_token = prefix > 0 and getattr(model, "global_pool", "token") == "token"
    return Layout((int(gh), int(gw)), prefix, pooled_by_token)
