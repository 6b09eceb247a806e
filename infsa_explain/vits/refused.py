"""Models and layers without one token graph per layer: refused by name, with the reason."""

from __future__ import annotations

from functools import cache

from torch import nn

from .registry import dotted_names

__all__ = ["BIAS", "refusal"]

BIAS = (
    "adds a bias of the tokens' relative position to q kᵀ, so that its softmax is no function of "
    "queries and keys alone"
)
GRIDS = (
    "attends within windows, or over grids of different sizes, so that tokens of one layer are not "
    "those of the next and there is no graph over the whole image"
)
TIMM_GRIDS = (
    *("coat", "crossvit", "davit", "edgenext", "efficientformer", "efficientformer_v2"),
    *("efficientvit_mit", "efficientvit_msra", "fastvit", "gcvit", "hiera", "hieradet_sam2"),
    *("iformer", "levit", "maxxvit", "mobilevit", "mvitv2", "nest", "nextvit", "pit", "pvt_v2"),
    *("swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit", "tnt"),
    *("twins", "visformer", "vision_transformer_sam", "volo"),
)
HUGGING_FACE_GRIDS = (
    *("hiera", "levit", "mobilevit", "mobilevitv2", "pvt", "pvt_v2", "swin", "swinv2", "vitdet"),
)
#: Reasons, and the classes of models or layers they apply to. A name that ends with a dot stands
#: for all classes of a module.
REASONS = {
    GRIDS: (
        *(f"timm.models.{name}." for name in TIMM_GRIDS),
        "timm.models.metaformer.Attention",
        "torchvision.models.swin_transformer.",
        "torchvision.models.maxvit.",
        *(f"transformers.models.{name}." for name in HUGGING_FACE_GRIDS),
    ),
    BIAS: (
        "timm.models.vision_transformer_relpos.RelPosAttention",
        "transformers.models.beit.",
    ),
    "adds attention to learned positions to its softmax, gated head by head": (
        "timm.models.convit.GPSA",
    ),
    "mixes its heads before and after the softmax, so that no head has a graph of its own": (
        "timm.models.cait.TalkingHeadAttn",
    ),
    "attends between channels, not between tokens": ("timm.models.xcit.XCA",),
    "subtracts one softmax from another, so that its weights can be negative and are no graph": (
        "timm.layers.diff_attention.DiffAttention",
        "timm.models.vision_transformer.DiffParallelScalingBlock",
    ),
    "rotates queries and keys with code of its own, which is not read here": (
        "timm.models.gemma4_vit.Gemma4Attention",
        "transformers.models.dinov3_vit.",
    ),
}


def refusal(module: nn.Module) -> str | None:
    """Why a model or a layer is refused, such as "attends ..."; None if it is not in the list."""
    return _reason(tuple(dotted_names(type(module))))


@cache
def _reason(names: tuple[str, ...]) -> str | None:
    for name in names:
        for reason, refused in REASONS.items():
            if any(name == one or (one.endswith(".") and name.startswith(one)) for one in refused):
                return reason
    return None
