"""A forward pass on some of an image's patches: the others are taken out, not painted over."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

__all__ = ["forward_patches"]


def forward_patches(model: nn.Module, images: Tensor, keep: Tensor) -> Tensor:
    """Logits of a timm ViT that sees only the patches in ``keep``.

    Prefix tokens stay, and every patch keeps the position embedding of its own place.

    Args:
        model: a timm ``VisionTransformer``.
        images: (B, 3, H, W), normalised.
        keep: (B, K) indices of patches in raster order, K ≥ 1.

    Returns:
        Logits (B, C).

    Raises:
        ValueError: if the model is no timm ``VisionTransformer``.

    Source: token dropping, as in PatchDropout (arXiv 2208.07220).
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"taking out tokens needs a timm VisionTransformer, got {type(model)}")
    prefix = model.num_prefix_tokens

    def take(module: nn.Module, inputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        index = (keep + prefix).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.cat([x[:, :prefix], x.gather(1, index)], dim=1)

    # timm drops patches here, after the position embedding: the place to choose which.
    handle = model.patch_drop.register_forward_hook(take)
    try:
        logits: Tensor = model(images)
    finally:
        handle.remove()
    return logits
