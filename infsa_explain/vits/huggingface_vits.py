"""Hugging Face's ViT, DeiT, DINOv2 and DINOv2 with registers; transformers is never imported."""

from __future__ import annotations

import re
from functools import partial
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

ARCHITECTURES = r"transformers\.models\.(vit|deit|dinov2|dinov2_with_registers)\.modeling_\1\."

# ---------------------------------------------------------------- attention


def projections(module: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
    """W_q, W_k, W_v, by the names of newer or older transformers, or None."""
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
    """One projection of the tokens, (B, H, N, d)."""
    return split_heads(linear(x), module.num_attention_heads)


def project(module: Any, heads: Tensor) -> Tensor:
    """W_o of the merged heads. In older transformers another module does that."""
    tokens: Tensor = getattr(module, "o_proj", nn.Identity())(merge_heads(heads))
    return tokens


def huggingface_self_attention(module: nn.Module) -> bool:
    """Whether a module is the self-attention of one of these models, with its projections."""
    return (
        bool(re.match(ARCHITECTURES, dotted_names(type(module))[0]))
        and hasattr(module, "num_attention_heads")
        and projections(module) is not None
    )


@register_attention(huggingface_self_attention, "softmax")
def softmax(module: Any, x: Tensor) -> Reading:
    """q and k, whatever implementation of attention the model uses."""
    return reading(module, x, scale=module.scaling)


def reading(
    module: Any, x: Tensor, gamma: Tensor | None = None, scale: float | None = None
) -> Reading:
    """The reading of a layer with softmax or InfSA."""
    q, k, v = (partial(heads_of, module, linear, x) for linear in projections(module) or ())
    return Reading(q(), k(), gamma, scale, values=v, output=partial(project, module))


# ---------------------------------------------------------------- the same layer with InfSA


class _Projected(nn.Module):
    """Hugging Face's self-attention with InfSA. Returns (tokens, None)."""

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


@register_attention(PureProjected, "pure")
@register_attention(LinearProjected, "linear")
def infsa_layer(module: Any, x: Tensor) -> Reading:
    """As :func:`softmax`, with γ."""
    return reading(module, x, module.gamma)


def is_convertible(module: nn.Module) -> bool:
    """Whether a module is such a self-attention, with softmax or InfSA."""
    return huggingface_self_attention(module) or type(module) in (PureProjected, LinearProjected)


@register_forms(is_convertible)
def forms(module: Any) -> Forms:
    """Each architecture has its own softmax class. A converted layer stores it."""
    softmax_class = getattr(module, "softmax_class", type(module))
    dropout = getattr(module, "attention_dropout", getattr(module, "dropout_prob", 0.0))
    heads = module.num_attention_heads
    return Forms(softmax_class, PureProjected, LinearProjected, heads, float(dropout))


# ---------------------------------------------------------------- models


@register_family
class HuggingFaceFamily(Family):
    """Hugging Face's ViT, DeiT, DINOv2 and DINOv2 with registers, with or without a classifier."""

    name = "Hugging Face"

    def matches(self, model: nn.Module) -> bool:
        pattern = ARCHITECTURES + (
            r"(?!\w*PreTrained)\w+?(Model|ForImageClassification(WithTeacher)?)$"
        )
        return any(re.match(pattern, name) for name in dotted_names(type(model)))

    def layout(self, model: Any, images: Tensor) -> Layout:
        """A class token, DeiT's distillation token or registers, then patches.

        DINOv2's classifier reads the class token and the mean of the patches. It counts as reading
        the class token.
        """
        embeddings = embeddings_of(model)
        patch = embeddings.patch_embeddings.projection.kernel_size
        extra = hasattr(embeddings, "distillation_token") + getattr(
            model.config, "num_register_tokens", 0
        )
        return Layout(whole_patches(images, patch), 1 + extra, True)

    def data(self, model: Any) -> dict[str, Any]:
        """As the image processors of the published checkpoints, at the size in ``config``.

        ViT: the whole image squashed, mean and deviation 0.5. The others: timm's defaults, which
        are ImageNet's mean and deviation, and the central 7/8.
        """
        size = model.config.image_size
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        config: dict[str, Any] = {"input_size": (model.config.num_channels, height, width)}
        if model.config.model_type == "vit":
            half = (0.5, 0.5, 0.5)
            config |= {"mean": half, "std": half, "interpolation": "bilinear"}
            config |= {"crop_pct": 1.0, "crop_mode": "squash"}
        return config

    def classifies(self, model: Any) -> bool:
        """Whether a model has a classifier that is not an identity."""
        heads = (getattr(model, name, nn.Identity()) for name in ("classifier", "cls_classifier"))
        return any(not isinstance(head, nn.Identity) for head in heads)

    def fresh(self, model: Any) -> nn.Module:
        return type(model)(model.config)  # type: ignore[no-any-return]

    def drop(self, model: Any) -> nn.Module:
        return embeddings_of(model).dropout  # type: ignore[no-any-return]


def embeddings_of(model: Any) -> Any:
    """The module that turns an image into tokens."""
    return getattr(model, model.base_model_prefix, model).embeddings
