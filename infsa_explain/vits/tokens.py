"""A forward pass on some of an image's patches: the others are taken out, not painted over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from infsa_metrics import class_probabilities, output_tensor
from infsa_metrics.outputs import Output, eval_mode
from torch import Tensor, nn

from . import model_of, vit_of
from .capturing import layout, patch_grid
from .watching import watching

__all__ = ["classify_kept", "drop_fill", "forward_patches"]


def forward_patches(model: nn.Module, images: Tensor, keep: Tensor) -> Tensor:
    """Logits of a ViT that sees only the patches in ``keep``.

    Prefix tokens stay, and every patch keeps the position embedding of its own place.

    Args:
        model: a ViT of a family that says where tokens can be taken out: timm's
            ``VisionTransformer``, torchvision's and Hugging Face's.
        images: (B, 3, H, W), normalised.
        keep: (B, K) indices of patches in raster order, K ≥ 1.

    Returns:
        Logits (B, C).

    Raises:
        ValueError: if the model's family does not say so, or ``keep`` does not hold indices of
            patches.

    Source: token dropping, as in PatchDropout (arXiv 2208.07220).
    """
    vit = vit_of(model)
    family = model_of(vit)
    place = family.drop(vit) if family is not None and family.drop is not None else None
    if place is None:
        raise ValueError(
            f"tokens cannot be taken out of {type(vit).__name__}: the registration of its family, "
            f"{family.name if family else 'unknown'}, does not say where (drop=…); choose another "
            "fill"
        )
    prefix = layout(vit, images).num_prefix_tokens

    def take(name: str, module: nn.Module, args: Any, kwargs: Any, x: Tensor) -> Tensor:
        patches = x.shape[1] - prefix
        if keep.numel() == 0 or keep.min() < 0 or keep.max() >= patches:
            raise ValueError(f"keep must hold indices of patches, 0 to {patches - 1}, got {keep}")
        index = (keep + prefix).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.cat([x[:, :prefix], x.gather(1, index)], dim=1)

    with watching({"drop": place}, after=take):
        return output_tensor(model(images))


def drop_fill(model: nn.Module, output: Output = "auto") -> Callable[[Tensor, Tensor], Tensor]:
    """The fill ``drop``: removed patches are taken out of a ViT's tokens, not painted over.

    Args:
        model: as :func:`forward_patches` takes it.
        output: what its outputs are; see :mod:`infsa_metrics.outputs`.

    Returns:
        ``predict_masked(images, removed)`` for ``infsa_metrics.deletion_curve``: images
        (B, 3, H, W), removed (B, gh, gw) bool, to probabilities (B, C). An image with no patch
        left is the image whose every patch is the mean (zero after normalisation).
    """

    def predict_masked(images: Tensor, removed: Tensor) -> Tensor:
        expected = (len(images), *patch_grid(model, images))
        if removed.shape != expected:
            raise ValueError(f"removed must be {expected}, got {tuple(removed.shape)}")
        with eval_mode(model):
            logits = classify_kept(model, images, torch.zeros_like(images), removed)
        return class_probabilities(logits, output)

    return predict_masked


def classify_kept(model: nn.Module, images: Tensor, emptied: Tensor, removed: Tensor) -> Tensor:
    """Logits (B, C) without the removed patches: one pass for all images with as many left.

    ``emptied`` stands for an image with no patch left, and is of the shape of ``images``.
    """
    if not len(images):
        raise ValueError("images must hold at least one image")
    kept = ~removed.flatten(1)
    count = kept.sum(1)
    groups, logits = [], []
    for size in sorted(set(count.tolist())):
        group = (count == size).nonzero().squeeze(1)
        if size:
            keep = kept[group].nonzero()[:, 1].view(-1, size)
            logits.append(forward_patches(model, images[group], keep))
        else:
            logits.append(model(emptied[group]))
        groups.append(group)
    return torch.cat(logits)[torch.cat(groups).argsort()]
