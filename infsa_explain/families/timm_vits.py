"""timm's Vision Transformers, and our own, which stand in their slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models import beit, eva
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn

from ..attention import LinearInfSA, PureInfSA, queries_keys
from .refused import BIAS
from .registry import (
    Forms,
    Layout,
    Reading,
    attention_family,
    convertible,
    merge_heads,
    model_family,
    patches,
    split_heads,
)

# ---------------------------------------------------------------- attention


@attention_family(PureInfSA, "pure")
@attention_family(LinearInfSA, "linear")
def our_own(module: PureInfSA | LinearInfSA, x: Tensor) -> Reading:
    """q and k of our own layers."""
    q, k = queries_keys(module, x)
    values = lambda: module.queries_keys_values(x)[2]  # noqa: E731
    return Reading(q, k, module.gamma, values=values, output=output(module, x))


@attention_family(Attention, "softmax")
def softmax(module: Attention, x: Tensor) -> Reading:
    """q_norm(W_q x), k_norm(W_k x)."""
    q, k = queries_keys(module, x)
    values = lambda: split_heads(module.qkv(x).chunk(3, -1)[2], module.num_heads)  # noqa: E731
    return Reading(q, k, scale=module.scale, values=values, output=output(module, x))


def output(module: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Norm, gate and projection of the heads, of layers that may be without the first two."""

    def project(heads: Tensor) -> Tensor:
        out = getattr(module, "norm", nn.Identity())(merge_heads(heads))
        gate = getattr(module, "gate", None)
        tokens: Tensor = module.proj(out if gate is None else out * gate(x).sigmoid())
        return tokens

    return project


@attention_family(ParallelScalingBlock, "softmax")
def parallel_block(module: ParallelScalingBlock, x: Tensor) -> Reading:
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


@attention_family(AttentionRope, "softmax", inputs=("rope",))
@attention_family(eva.EvaAttention, "softmax", inputs=("rope",))
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


@attention_family(beit.Attention, "softmax")
def beit_attention(module: beit.Attention, x: Tensor) -> Reading:
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
    prefix, rest = x[:, :, : module.num_prefix_tokens], x[:, :, module.num_prefix_tokens :]
    turned = apply_rot_embed_cat(rest, rope, half=getattr(module, "rotate_half", False))
    return torch.cat([prefix, turned.to(x.dtype)], dim=2)


@convertible(lambda module: type(module) in (Attention, PureInfSA, LinearInfSA))
def forms(module: Attention) -> Forms:
    """InfSA layers are timm's ``Attention`` but for γ and what they do with q, k and v."""
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


@model_family("timm", lambda model: embedding(model) is not None, data)
def layout(model: Any, images: Tensor) -> Layout:
    """Prefix tokens and pooling as timm's models name them."""
    embed = embedding(model)
    gh, gw = embed.dynamic_feat_size(tuple(images.shape[-2:]))  # some pad
    if not gh or not gw:
        patches(images, embed.feat_ratio(as_scalar=False))
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    pooled_by_token = prefix > 0 and getattr(model, "global_pool", "token") == "token"
    return Layout((int(gh), int(gw)), prefix, pooled_by_token)
