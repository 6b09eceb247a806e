"""Hugging Face's ViT, DeiT, DINOv2 and DINOv2 with registers; transformers is never imported."""

from __future__ import annotations

import re
from functools import partial
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

FAMILIES = r"transformers\.models\.(vit|deit|dinov2|dinov2_with_registers)\.modeling_\1\."

# ---------------------------------------------------------------- attention


def projections(module: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
    """W_q, W_k, W_v, as transformers of one age or another names them, or None."""
    for names in (("q_proj", "k_proj", "v_proj"), ("query", "key", "value")):
        if all(hasattr(module, name) for name in names):
            q, k, v = (getattr(module, name) for name in names)
            return q, k, v
    return None


def queries_keys_values(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_q x, W_k x and W_v x, each (B, H, N, d)."""
    q, k, v = (heads_of(module, linear, x) for linear in projections(module) or ())
    return q, k, v


def heads_of(module: Any, linear: nn.Linear, x: Tensor) -> Tensor:
    """One of these, (B, H, N, d)."""
    return split_heads(linear(x), module.num_attention_heads)


def project(module: Any, heads: Tensor) -> Tensor:
    """W_o of the heads, merged; older layers leave that to another module."""
    tokens: Tensor = getattr(module, "o_proj", nn.Identity())(merge_heads(heads))
    return tokens


def huggingface_self_attention(module: nn.Module) -> bool:
    """Whether a module is the self-attention of one of these models, with its projections."""
    return (
        bool(re.match(FAMILIES, dotted_names(type(module))[0]))
        and hasattr(module, "num_attention_heads")
        and projections(module) is not None
    )


@attention_family(huggingface_self_attention, "softmax")
def softmax(module: Any, x: Tensor) -> Reading:
    """q and k, whichever way attention is then computed."""
    return reading(module, x, scale=module.scaling)


def reading(
    module: Any, x: Tensor, gamma: Tensor | None = None, scale: float | None = None
) -> Reading:
    """What a layer of either kind makes of its tokens."""
    q, k, v = (partial(heads_of, module, linear, x) for linear in projections(module) or ())
    return Reading(q(), k(), gamma, scale, values=v, output=partial(project, module))


# ---------------------------------------------------------------- the same layer with InfSA


class _Projected(nn.Module):
    """Hugging Face's self-attention with InfSA: tokens in, (tokens, None) out."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        infsa.refuse_masks(attention_mask=attention_mask)
        heads = self.attend(*queries_keys_values(self, hidden_states))  # type: ignore[operator]
        return project(self, heads), None


class PureProjected(infsa.Pure, _Projected):
    """Pure InfSA in place of Hugging Face's self-attention."""


class LinearProjected(infsa.Linear, _Projected):
    """Linear-InfSA in place of Hugging Face's self-attention."""


@attention_family(PureProjected, "pure")
@attention_family(LinearProjected, "linear")
def _infsa(module: Any, x: Tensor) -> Reading:
    return reading(module, x, module.gamma)


@convertible(lambda m: huggingface_self_attention(m) or type(m) in (PureProjected, LinearProjected))
def forms(module: Any) -> Forms:
    """Each model has a class of its own for softmax; a converted layer remembers which."""
    softmax_class = getattr(module, "softmax_class", type(module))
    return Forms(
        softmax_class,
        PureProjected,
        LinearProjected,
        module.num_attention_heads,
        _dropout(module),
    )


def _dropout(module: Any) -> float:
    return float(getattr(module, "attention_dropout", getattr(module, "dropout_prob", 0.0)))


# ---------------------------------------------------------------- models


def is_supported(model: nn.Module) -> bool:
    """Whether a model is one of these, bare or with a classifier."""
    heads = (
        r"(?!\w*PreTrained)\w+?(Model|ForImageClassification|ForImageClassificationWithTeacher)$"
    )
    return any(re.match(FAMILIES + heads, name) for name in dotted_names(type(model)))


def data(model: Any) -> dict[str, Any]:
    """As the published checkpoints' image processors, at the size in the model's ``config``.

    ViT: the whole image squashed, mean and deviation 0.5. The others: timm's defaults, which are
    ImageNet's mean and deviation, and the middle 7/8.
    """
    size = model.config.image_size
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    prepared: dict[str, Any] = {"input_size": (model.config.num_channels, height, width)}
    if model.config.model_type == "vit":
        half = (0.5, 0.5, 0.5)
        prepared |= {"mean": half, "std": half, "interpolation": "bilinear"}
        prepared |= {"crop_pct": 1.0, "crop_mode": "squash"}
    return prepared


def classifies(model: Any) -> bool:
    """Whether a model has a classifier: an identity stands for none."""
    names = ("classifier", "cls_classifier")
    return any(not isinstance(getattr(model, name, nn.Identity()), nn.Identity) for name in names)


def embeddings_of(model: Any) -> Any:
    """The module that makes tokens of an image."""
    return getattr(model, model.base_model_prefix, model).embeddings


@model_family(
    "Hugging Face",
    is_supported,
    data,
    classifies,
    fresh=lambda model: type(model)(model.config),
    drop=lambda model: embeddings_of(model).dropout,
)
def layout(model: Any, images: Tensor) -> Layout:
    """A class token, DeiT's distillation token or registers, then patches.

    DINOv2's classifier reads the class token beside the mean of the patches; it counts as reading
    the class token.
    """
    embeddings = embeddings_of(model)
    patch = embeddings.patch_embeddings.projection.kernel_size
    extra = hasattr(embeddings, "distillation_token") + getattr(
        model.config, "num_register_tokens", 0
    )
    return Layout(patches(images, patch), 1 + extra, True)
