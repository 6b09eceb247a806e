"""A forward pass on some of an image's patches: the tokens of the others are taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from infsa_metrics import class_probabilities, output_tensor
from infsa_metrics.outputs import Output, eval_mode
from torch import Tensor, nn

from .capturing import layout, patch_grid
from .passes import watching
from .registry import Family, family_of
from .wrappers import vit_of

__all__ = ["classify_kept", "drop_fill", "drop_point", "forward_patches"]


def drop_point(model: nn.Module) -> nn.Module:
    """The module behind which tokens are taken out, as the model's family says.

    Raises:
        ValueError: if its family does not say where (:meth:`infsa_explain.vits.Family.drop`).
    """
    vit = vit_of(model)
    family = family_of(vit)
    return (family or Family()).drop(vit)


def forward_patches(model: nn.Module, images: Tensor, keep: Tensor) -> Tensor:
    """Logits of a ViT that sees only the patches in ``keep``.

    Prefix tokens are kept. Every patch keeps its own position embedding.

    Args:
        model: a ViT whose family says where tokens are taken out, such as timm's
            ``VisionTransformer``, torchvision's and Hugging Face's.
        images: (B, 3, H, W), normalised.
        keep: (B, K) indices of patches in raster order, K ≥ 1.

    Returns:
        Logits (B, C).

    Raises:
        ValueError: as :func:`drop_point`, or if ``keep`` does not hold indices of patches.

    Source: token dropping, as in PatchDropout (arXiv 2208.07220).
    """
    point = drop_point(model)
    prefix = layout(model, images).num_prefix_tokens

    def take(name: str, module: nn.Module, args: Any, kwargs: Any, x: Tensor) -> Tensor:
        patches = x.shape[1] - prefix
        if keep.numel() == 0 or keep.min() < 0 or keep.max() >= patches:
            raise ValueError(f"keep must hold indices of patches, 0 to {patches - 1}, got {keep}")
        index = (keep + prefix).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.cat([x[:, :prefix], x.gather(1, index)], dim=1)

    with watching({"drop": point}, after=take):
        return output_tensor(model(images))


def drop_fill(model: nn.Module, output: Output = "auto") -> Callable[[Tensor, Tensor], Tensor]:
    """The fill ``drop``: the tokens of removed patches are taken out of the ViT.

    Args:
        model: as for :func:`forward_patches`.
        output: the kind of its outputs; see :mod:`infsa_metrics.outputs`.

    Returns:
        ``predict_masked(images, removed)`` for ``infsa_metrics.deletion_curve``: images
        (B, 3, H, W), removed (B, gh, gw) bool, to probabilities (B, C). If no patch is left, every
        patch is set to the mean colour (zero after normalisation) instead.

    Raises:
        ValueError: as :func:`drop_point`.
    """
    drop_point(model)

    def predict_masked(images: Tensor, removed: Tensor) -> Tensor:
        expected = (len(images), *patch_grid(model, images))
        if removed.shape != expected:
            raise ValueError(f"removed must be {expected}, got {tuple(removed.shape)}")
        with eval_mode(model):
            logits = classify_kept(model, images, torch.zeros_like(images), removed)
        return class_probabilities(logits, output)

    return predict_masked


def classify_kept(model: nn.Module, images: Tensor, emptied: Tensor, removed: Tensor) -> Tensor:
    """Logits (B, C) without the removed patches: one pass per number of remaining patches.

    ``emptied``, of the shape of ``images``, replaces an image with no patch left.
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
