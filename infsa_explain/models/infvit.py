"""InfViT in timm's registry: Vision Transformers with InfSA, and their softmax twins.

Importing this module registers the names, so that ``timm.create_model("infvit_linear_4l")``
works. A twin differs from its InfViT only in the attention layer.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers.attention import Attention
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..attention.layers import LinearInfSA, PureInfSA
from ..catalogue import BUNDLED, UNTRAINED, weights_file
from .any_size import PiecewiseVisionTransformer

__all__ = ["InfViT"]

ATTENTION_LAYERS: dict[str, type[Attention]] = {
    "linear": LinearInfSA,
    "pure": PureInfSA,
    "softmax": Attention,
}


class InfViT(PiecewiseVisionTransformer):
    """timm's ``VisionTransformer`` with InfSA in its attention slot.

    Args:
        attention: ``"linear"``, ``"pure"``, or ``"softmax"`` for the twin.
        pre_logits: a D×D layer before the classifier, as in the published models.
        accumulate: pool Σ_l γˡ x⁽ˡ⁾ over the outputs x⁽ˡ⁾ of the blocks l = 1 … L, with one
            learnable γ, instead of the last output.
        **kwargs: timm's ``VisionTransformer`` arguments: image and patch size, width, depth,
            heads, class token or pooling, registers.

    Images (B, 3, H, W) in, logits (B, num_classes) out.
    """

    def __init__(
        self,
        *,
        attention: str = "linear",
        pre_logits: bool = False,
        accumulate: bool = False,
        **kwargs: Any,
    ) -> None:
        if attention not in ATTENTION_LAYERS:
            raise ValueError(
                f"attention must be one of {', '.join(ATTENTION_LAYERS)}, got {attention!r}"
            )
        super().__init__(attn_layer=ATTENTION_LAYERS[attention], **kwargs)
        self.pre_logits: nn.Module = nn.Identity()
        if pre_logits:
            self.pre_logits = nn.Sequential(nn.Linear(self.embed_dim, self.embed_dim), nn.Tanh())
        self.accumulation_logit = nn.Parameter(torch.zeros(())) if accumulate else None

    def reset_parameters(self) -> None:
        """Start the accumulation at γ = ½."""
        if self.accumulation_logit is not None:
            nn.init.zeros_(self.accumulation_logit)

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Token features before pooling: images (B, 3, H, W) to (B, N, D)."""
        if self.accumulation_logit is None:
            features: Tensor = super().forward_features(x, attn_mask, is_causal)
            return features
        if attn_mask is not None or is_causal:
            raise ValueError("accumulate=True takes no attention mask (attn_mask, is_causal)")
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        gamma = torch.sigmoid(self.accumulation_logit)
        weight, total = gamma, torch.zeros_like(x)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
            total = total + weight * x
            weight = weight * gamma
        out: Tensor = self.norm(total)
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify: token features (B, N, D) to logits (B, num_classes)."""
        x = self.pre_logits(super().forward_head(x, pre_logits=True))
        return x if pre_logits else self.head(x)


def _cfg(input_size: int = 224, num_classes: int = 1000, file: str = "") -> dict[str, Any]:
    return {
        "file": file,
        "input_size": (3, input_size, input_size),
        "num_classes": num_classes,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "fixed_input_size": True,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs(
    {
        **{name: _cfg() for name in UNTRAINED},
        **{
            name: _cfg(112 if name.endswith("digits") else 64, 10, weights_file(name))
            for name in BUNDLED
        },
    }
)


#: The published models: width 1024, 64 heads of width 16, and a D×D layer before the classifier.
PUBLISHED = {"patch_size": 16, "embed_dim": 1024, "num_heads": 64, "pre_logits": True}
#: Small models with patches of 8×8 pixels, averaged for the classifier.
SMALL = {
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 4,
    "global_pool": "avg",
    "class_token": False,
}
#: Arguments by the last part of a model's name.
SIZES: dict[str, dict[str, Any]] = {
    "4l": PUBLISHED | {"depth": 4},  # Linear-InfSA: 53.5M parameters
    "24l": PUBLISHED | {"depth": 24},
    "digits": SMALL | {"num_heads": 8},  # images of 112×112 pixels
    "photos": SMALL | {"num_heads": 16},  # images of 64×64 pixels
}


def _register(name: str) -> None:
    """Register a model with timm: a family, its attention and its size, joined by underscores."""
    _, attention, size = name.split("_")

    def build(pretrained: bool = False, **kwargs: Any) -> InfViT:
        model: InfViT = build_model_with_cfg(
            InfViT,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"},
            **{**SIZES[size], "attention": attention, **kwargs},
        )
        return model

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{InfViT.__name__} with {attention} attention, {size}."
    globals()[name] = register_model(build)


for _name in (*BUNDLED, *UNTRAINED):
    _register(_name)
